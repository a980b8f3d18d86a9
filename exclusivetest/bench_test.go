package exclusivetest_test

import (
	"testing"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
)

func BenchmarkMemory(b *testing.B) {
	exclusivetest.Bench(b, func(*testing.B) exclusivetest.Backend {
		d := exclusivetest.NewMemoryDB()
		return exclusivetest.Backend{New: func(cfg exclusivetest.Config) (exclusive.Exclusive, error) {
			return exclusivetest.NewMemory(d, cfg)
		}}
	})
}
