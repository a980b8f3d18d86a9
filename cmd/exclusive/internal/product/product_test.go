package product_test

import (
	"os"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/product"
)

// The README promises the same versions.
func TestREADME(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), product.Supported()) {
		t.Errorf("README.md does not say %q", product.Supported())
	}
}
