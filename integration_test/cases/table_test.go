package cases_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/field-cases.md anew")

const tablePath = "../../docs/field-cases.md"

// reports are the field reports, each of which needs a test.
const reports = `
	B001 B002 B004 B005 B007 B008
	B010 B011 B013 B014 B016 B017 B019 B020
	B022 B023 B025 B026 B028 B029
	B031 B032 B034 B035 B037 B038 B040 B041 B043
	B044 B046 B047 B049 B050 B052 B053 B055 B056 B058
	B059 B061 B062 B064 B065 B067
	B068 B070 B071
	B073 B074 B076 B077 B079 B080
	B082 B083 B085 B086 B088 B089
	B091 B092
	B094 B095 B097 B098
	B100 B101 B103 B104 B106 B107`

const tableHead = `# What went wrong in the field

Reports of things that happened twice, or not at all, under other tools, and what
happens here instead: the right outcome of each is proven by a test on every server
and driver that it concerns. Cases without a number have the cause of a report but were
not reported. The tests are in
[integration_test/cases](../integration_test/cases), or in the package that is named;
their comments say what went wrong. With EXCLUSIVE_TEST_LONG=1 they are as large as what
was reported, and take some twenty minutes. This table is made from them: ` + "`go test ./cases -run TestFieldCases -update`" + `.

| case | what happens | test |
|---|---|---|
`

// The table has one row for each report and for each further case, made from
// the comments of the tests.
func TestFieldCases(t *testing.T) {
	rows, numbered := fieldCases(t)
	for _, id := range strings.Fields(reports) {
		if n := numbered[id]; n != 1 {
			t.Errorf("%s has %d tests, and must have one", id, n)
		}
		delete(numbered, id)
	}
	for id := range numbered {
		t.Errorf("there is no report %s", id)
	}
	want := tableHead + strings.Join(rows, "")
	if *update {
		if err := os.WriteFile(tablePath, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(tablePath)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/field-cases.md does not say what the tests do; run this test with -update")
	}
}

// also finds in a test's comment the tests of other packages that prove a part of its
// case: "Also: migrations.TestKilled."
var also = regexp.MustCompile(`Also: (\w+\.Test\w+(?:,\s\w+\.Test\w+)*)\.`)

// elsewhere are those tests, each of which must exist, as a cell of the table goes on.
func elsewhere(t *testing.T, comment string) (cell string) {
	t.Helper()
	m := also.FindStringSubmatch(comment)
	if m == nil {
		return ""
	}
	for _, name := range strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }) {
		folder, test, _ := strings.Cut(name, ".")
		files, err := filepath.Glob(filepath.Join("..", folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), "\nfunc "+test+"(")
		}) {
			t.Errorf("there is no test %s", name)
		}
		cell += fmt.Sprintf(", [%s](../integration_test/%s) `%s`", folder, folder, test)
	}
	return cell
}

var caseName = regexp.MustCompile(`^Test(B\d{3}|[A-Z]\w*Own|Trap)_\w+$`)

// fieldCases returns the rows of the tests in this package, in order, and how
// many tests each number has.
func fieldCases(t *testing.T) (rows []string, numbered map[string]int) {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	type row struct{ order, text string }
	var all []row
	numbered = make(map[string]int)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil {
				continue
			}
			m := caseName.FindStringSubmatch(fn.Name.Name)
			if m == nil {
				continue
			}
			outcome := new(doc.Package).Synopsis(fn.Doc.Text())
			if outcome == "" {
				t.Errorf("%s has no comment that says the right outcome", fn.Name.Name)
			}
			id, order := m[1], "1"+fn.Name.Name // numbers first
			if strings.HasPrefix(id, "B") && strings.Trim(id[1:], "0123456789") == "" {
				numbered[id]++
				order = "0" + fn.Name.Name
			} else {
				id = strings.ToLower(strings.TrimSuffix(id, "Own"))
			}
			text := fmt.Sprintf("| %s | %s | `%s`%s |\n", id, strings.ReplaceAll(outcome, "|", `\|`), fn.Name.Name, elsewhere(t, fn.Doc.Text()))
			all = append(all, row{order, text})
		}
	}
	slices.SortFunc(all, func(a, b row) int { return strings.Compare(a.order, b.order) })
	for _, r := range all {
		rows = append(rows, r.text)
	}
	return rows, numbered
}
