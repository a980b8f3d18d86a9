// Package servers finds or starts the real database servers that the tests need.
//
// A server of each [Kind] is looked for in this order:
//
//  1. a DSN in the environment, such as EXCLUSIVE_TEST_POSTGRES;
//  2. a container of the official image, or of the one named by
//     EXCLUSIVE_TEST_POSTGRES_IMAGE and so on;
//  3. a server program of this machine, run on a temporary directory;
//  4. a Debian root made with debootstrap and kept in $EXCLUSIVE_TEST_CACHE,
//     which on Debian is the only source of a real MySQL. It needs root.
//
// A source that has nothing to offer is passed over. One that has something
// which does not work ends the search with an error, so that a broken set-up
// is never hidden by the next source.
//
// EXCLUSIVE_TEST_SOURCES (a list out of env, container, program, debian)
// restricts and reorders the sources. EXCLUSIVE_TEST_REQUIRE (all, or a list of
// kinds) makes a test fail, rather than be skipped, when its server is missing.
//
// The account is always test with password test, allowed to do everything.
// Whatever a process started ends with that process, however it ends. Until then a
// goroutine waits for each server program, which a check for leaked goroutines has
// to ignore: servers.(*process).run.
package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kind is a kind of database server.
type Kind string

// The kinds of server that the tests use. To add one, describe it in kinds.go.
const (
	Postgres Kind = "postgres"
	MySQL    Kind = "mysql"
	MariaDB  Kind = "mariadb"
	Redis    Kind = "redis"
	Valkey   Kind = "valkey" // speaks as Redis does
)

// Kinds lists every kind of server.
func Kinds() []Kind { return []Kind{Postgres, MySQL, MariaDB, Redis, Valkey} }

// Variable is the name of the environment variable that holds a DSN for k.
func (k Kind) Variable() string { return "EXCLUSIVE_TEST_" + strings.ToUpper(string(k)) }

// Source says where a server comes from.
type Source string

// The sources of servers, in the order in which they are tried.
const (
	Env       Source = "env"
	Container Source = "container"
	Program   Source = "program"
	Debian    Source = "debian"
)

// Server is a running server that answers.
type Server struct {
	Kind      Kind
	DSN       string // holds a password: not to be printed
	Source    Source
	Version   string
	StartedIn time.Duration

	close func() error
}

// Close ends the server and removes its data. It leaves a server that came from
// the environment alone.
func (s *Server) Close() error { return s.close() }

// A starter gets one server from one source, which it starts with further options. It
// returns an [unavailable] error when the source has nothing to offer.
type starter func(ctx context.Context, kind Kind, options ...string) (*Server, error)

var starters = map[Source]starter{
	Env:       startEnv,
	Container: startContainer,
	Program:   startProgram,
	Debian:    startDebian,
}

// unavailable marks the reason why a source has nothing to offer.
type unavailable struct{ reason error }

func (e unavailable) Error() string { return e.reason.Error() }
func (e unavailable) Unwrap() error { return e.reason }

func unavailablef(format string, args ...any) error {
	return unavailable{fmt.Errorf(format, args...)}
}

// MissingError says why no source has a server.
type MissingError struct {
	Kind  Kind
	Tried []error // one for each source, in the order tried
}

func (e *MissingError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no %s server:", e.Kind)
	for _, err := range e.Tried {
		fmt.Fprintf(&b, "\n\t%v", err)
	}
	return b.String()
}

// Start gets a server from the first source that has one. The caller must close
// it. The error is a [*MissingError] when no source has anything to offer.
func Start(ctx context.Context, kind Kind) (*Server, error) {
	if _, ok := specs[kind]; !ok {
		return nil, fmt.Errorf("unknown kind of server %q: use one of %v", kind, Kinds())
	}
	sources, err := sourcesFromEnv()
	if err != nil {
		return nil, err
	}
	return startFrom(ctx, kind, sources)
}

func startFrom(ctx context.Context, kind Kind, sources []Source, options ...string) (*Server, error) {
	missing := &MissingError{Kind: kind}
	for _, source := range sources {
		begin := time.Now()
		s, err := starters[source](ctx, kind, options...)
		if err == nil {
			s.Kind, s.Source, s.StartedIn = kind, source, time.Since(begin)
			s.close = sync.OnceValue(s.close)
			return s, nil
		}
		err = fmt.Errorf("%s: %w", source, err)
		if !errors.As(err, new(unavailable)) {
			return nil, fmt.Errorf("%s server from %w", kind, err)
		}
		missing.Tried = append(missing.Tried, err)
	}
	return nil, missing
}

func startEnv(ctx context.Context, kind Kind, options ...string) (*Server, error) {
	dsn := os.Getenv(kind.Variable())
	switch {
	case dsn == "":
		return nil, unavailablef("%s is not set", kind.Variable())
	case options != nil:
		return nil, unavailablef("a server that runs takes no options")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	version, err := specs[kind].probe(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("the server named by %s does not answer: %w", kind.Variable(), err)
	}
	return &Server{DSN: dsn, Version: version, close: func() error { return nil }}, nil
}

func sourcesFromEnv() ([]Source, error) {
	all := []Source{Env, Container, Program, Debian}
	list := splitList(os.Getenv("EXCLUSIVE_TEST_SOURCES"))
	if len(list) == 0 {
		return all, nil
	}
	var sources []Source
	for _, name := range list {
		if !slices.Contains(all, Source(name)) {
			return nil, fmt.Errorf("EXCLUSIVE_TEST_SOURCES names %q: use a list out of %v", name, all)
		}
		sources = append(sources, Source(name))
	}
	return sources, nil
}

// Required reports whether EXCLUSIVE_TEST_REQUIRE asks for a server of this kind.
func Required(kind Kind) (bool, error) {
	required := false
	for _, name := range splitList(os.Getenv("EXCLUSIVE_TEST_REQUIRE")) {
		switch {
		case name == "all" || Kind(name) == kind:
			required = true
		case !slices.Contains(Kinds(), Kind(name)):
			return false, fmt.Errorf("EXCLUSIVE_TEST_REQUIRE names %q: use all, or a list out of %v", name, Kinds())
		}
	}
	return required, nil
}

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// await asks each DSN in turn until one answers, the server has exited, or time
// is up. Several DSNs are several ways to reach the same server.
func await(ctx context.Context, kind Kind, exited <-chan struct{}, dsns ...string) (dsn, version string, err error) {
	// The first start of a server takes seconds, or minutes on a machine under load.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		for _, dsn := range dsns {
			probeCtx, cancel := context.WithTimeout(ctx, 2*time.Second)
			version, probeErr := specs[kind].probe(probeCtx, dsn)
			cancel()
			if probeErr == nil {
				return dsn, version, nil
			}
			if ctx.Err() == nil { // otherwise keep the more telling error from before
				err = probeErr
			}
		}
		select {
		case <-exited:
			return "", "", errors.New("the server exited while starting")
		case <-ctx.Done():
			return "", "", fmt.Errorf("the server did not answer in time: %w", errors.Join(context.Cause(ctx), err))
		case <-time.After(50 * time.Millisecond):
		}
	}
}
