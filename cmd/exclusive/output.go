package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// written is standard output that keeps the first error: what a command says as it
// goes along may not have been written, as on a full disk.
type written struct {
	io.Writer
	err error
}

// Write implements io.Writer.
func (o *written) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// write writes what a command has found: as JSON, or as text for people.
func write[T any](w io.Writer, asJSON bool, found T, text func(io.Writer, T) error) error {
	if asJSON {
		return encodeJSON(w, found)
	}
	return text(w, found)
}

// encodeJSON writes v as the commands write JSON.
func encodeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// writeTable writes rows, the first of which is the head.
func writeTable(w io.Writer, rows [][]string) error {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(cell)
		}
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	err := table.Flush()
	for line := range strings.Lines(b.String()) {
		_, writeErr := fmt.Fprintln(w, strings.TrimRight(line, " \n"))
		err = errors.Join(err, writeErr)
	}
	return err
}

// printable quotes what others have named, where that could be mistaken or could
// do something to a terminal.
func printable(s string) string {
	switch {
	case s == "":
		return "-"
	case s == "-", strings.TrimSpace(s) != s, strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }):
		return strconv.Quote(s)
	}
	return s
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}
