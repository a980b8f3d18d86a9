package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// jobKey names a run of a task, or with an empty run a key: no two of them have the
// same.
func jobKey(name, run string) string {
	escape := strings.NewReplacer("%", "%25", "/", "%2F").Replace
	if run == "" {
		return escape(name)
	}
	return escape(name) + "/" + escape(run)
}

// saidError has another text than what it wraps.
type saidError struct {
	text string
	error
}

func (e *saidError) Error() string { return e.text }
func (e *saidError) Unwrap() error { return e.error }

// said is an error of the library as a command says it: for an operator, who knows
// name and run of the job, and commands in place of functions and files, which are
// those of line.
func said(err error, line func(command string, args ...string) string, name, run string) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, e := range ours(err) {
		text = strings.ReplaceAll(text, e.Error(), saying(*e, line, name, run))
	}
	if text == err.Error() {
		return err
	}
	return &saidError{text, err}
}

func saying(e exclusive.Error, line func(command string, args ...string) string, name, run string) string {
	key, began := e.Key, fmt.Sprintf("exclusive: %s %q", e.Op, e.Key)
	if key != "" && (key == run || run == "" && key == name) {
		key = jobKey(name, run)
	}
	if errors.Is(e.Kind, exclusive.ErrSchema) {
		e.Hint = line("init") + " makes the tables, or says what differs"
	}
	if hint, ends := strings.CutSuffix(e.Hint, " and Forget the run"); ends && errors.Is(e.Kind, uniquetask.ErrFailed) {
		e.Hint = hint + ", then " + line("forget", name, run)
	}
	if e.Hint == "release it first" {
		e.Hint = line("forget", name, run) + " --release takes it first"
	}
	text := strings.ReplaceAll(e.Error(), "stop this attempt, and call Do again if", "start this again if")
	if rest, ok := strings.CutPrefix(text, began); ok && key != "" {
		return fmt.Sprintf("%s %q%s", e.Op, key, rest)
	}
	return strings.TrimPrefix(text, "exclusive: ")
}

// ours are the errors of the library in a tree of errors, from its root on.
func ours(err error) (list []*exclusive.Error) {
	if e, ok := err.(*exclusive.Error); ok {
		list = append(list, e)
	}
	switch x := err.(type) {
	case interface{ Unwrap() error }:
		return append(list, ours(x.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, next := range x.Unwrap() {
			list = append(list, ours(next)...)
		}
	}
	return list
}
