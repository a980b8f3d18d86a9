package main

import "testing"

// Who asks for help gets it, and no error; a command that does not exist is one.
func TestUsage(t *testing.T) {
	t.Parallel()
	for _, help := range []string{"-h", "-help", "--help", "help"} {
		if err := dispatch(t.Context(), []string{help}); err != nil {
			t.Errorf("%s: %v", help, err)
		}
	}
	if err := dispatch(t.Context(), []string{"stop"}); err == nil {
		t.Error("no error for a command that does not exist")
	}
}
