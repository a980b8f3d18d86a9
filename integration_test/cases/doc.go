// Package cases has one test for each report of docs/field-cases.md: what went
// wrong for people who stopped things from happening twice with other tools.
//
// Rounds are as many as reported if EXCLUSIVE_TEST_LONG is set, which takes some twenty
// minutes, and fewer otherwise.
//
// The first sentence of a test's comment is the right outcome, and becomes its
// row in that table.
package cases
