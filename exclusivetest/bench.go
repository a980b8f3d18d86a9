package exclusivetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
)

// Bench measures a strategy, the same on every backend: what a Do with empty
// work costs when nobody is in the way, what a refused one costs, and what eight
// goroutines in two processes get done on one key. Compare runs with benchstat;
// only ratios within one run travel between machines.
func Bench(b *testing.B, setup func(b *testing.B) Backend) {
	b.Run("Do", func(b *testing.B) { benchDo(b, setup(b)) })
	b.Run("Refused", func(b *testing.B) { benchRefused(b, setup(b)) })
	b.Run("Contended", func(b *testing.B) { benchContended(b, setup(b)) })
}

func empty(context.Context, exclusive.Grant) error { return nil }

func benchOpen(b *testing.B, backend Backend, cfg Config) exclusive.Exclusive {
	b.Helper()
	x, err := backend.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	return x
}

func benchKey(b *testing.B, backend Backend) string {
	b.Helper()
	if backend.Key == nil {
		return keyOr("")
	}
	key, err := backend.Key(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return key
}

// benchDo uses one key, or a new one each time if a key can be done only once.
func benchDo(b *testing.B, backend Backend) {
	x := benchOpen(b, backend, Config{})
	once := x.Promises().OncePerKey
	key := benchKey(b, backend)
	b.ReportAllocs()
	for b.Loop() {
		if err := x.Do(b.Context(), key, empty); err != nil {
			b.Fatal(err)
		}
		if once {
			b.StopTimer()
			key = benchKey(b, backend)
			b.StartTimer()
		}
	}
}

func benchRefused(b *testing.B, backend Backend) {
	holder, x := benchOpen(b, backend, Config{}), benchOpen(b, backend, Config{})
	key := benchKey(b, backend)
	err := holder.Do(b.Context(), key, func(context.Context, exclusive.Grant) error {
		b.ReportAllocs()
		for b.Loop() {
			if err := x.Do(b.Context(), key, empty); !errors.Is(err, exclusive.ErrHeld) {
				b.Errorf("a held key: %v", err)
				break
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

func benchContended(b *testing.B, backend Backend) {
	processes := [2]exclusive.Exclusive{}
	for i := range processes {
		processes[i] = benchOpen(b, backend, Config{Wait: time.Minute})
	}
	if processes[0].Promises().OncePerKey {
		b.Skip("a key can be done only once")
	}
	key := benchKey(b, backend)
	work := make(chan struct{})
	done := make(chan error)
	const workers = 8
	for i := range workers {
		go func() {
			var err error
			for range work {
				if err == nil {
					err = processes[i%len(processes)].Do(b.Context(), key, empty)
				}
			}
			done <- err
		}()
	}
	start, grants := time.Now(), 0
	for b.Loop() {
		work <- struct{}{}
		grants++
	}
	close(work)
	for range workers {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
	b.ReportMetric(float64(grants)/time.Since(start).Seconds(), "grants/s")
}
