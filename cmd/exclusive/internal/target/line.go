package target

import (
	"slices"
	"strings"
)

// Line is a command of ours that a message tells to run next, as a shell takes it:
// on the database and the tables that the message is about.
func (t *Target) Line(command string, args ...string) string { return Line(t.Flags, command, args...) }

// Line writes one with the flags that name a database and its tables.
func Line(flags []string, command string, args ...string) string {
	line := "exclusive " + command
	for _, flag := range flags {
		line += " " + word(flag)
	}
	if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "-") }) {
		line += " --"
	}
	for _, arg := range args {
		line += " " + word(arg)
	}
	return line
}

// word writes a word as a shell reads it.
func word(word string) string {
	if word != "" && strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:,@+") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
