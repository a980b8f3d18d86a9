package templates

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"
)

const releasedPath = "testdata/made.txt"

// What a template makes goes with its version. A file that people have copied
// must not make something else from then on: a change comes as a new file, and
// the version of the old one is raised only to say so. Comments may change.
func TestReleased(t *testing.T) {
	t.Parallel()
	got := "# What each template makes: its version, and the beginning of the SHA-256 of its SQL without comments.\n"
	for _, d := range Dialects() {
		for _, x := range all(d) {
			sum := sha256.Sum256([]byte(strings.Join(code(x.up+x.down), " ")))
			got += fmt.Sprintf("%s %s %d %x\n", d, x.Name, x.Version, sum[:8])
		}
	}
	if *update {
		if err := os.WriteFile(releasedPath, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(releasedPath)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the templates make something else than %s says. If it has been released, leave the file as it was and add another;\n"+
			"if not: go test ./internal/templates -update\nit is now\n%s", releasedPath, got)
	}
}
