package strategies_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
)

// vanishes is a holder whose claims run and get no answer.
const vanishes = "vanishes"

// claimed counts the keys that it has taken.
var claimed = map[string]string{
	"casupdate":        "SELECT COUNT(*) FROM job WHERE state = 'PROCESSING' AND holder = ?",
	"casupdate_leased": "SELECT COUNT(*) FROM job WHERE state = 'PROCESSING' AND holder = ?",
	"uniquetask":       "SELECT COUNT(*) FROM exclusive_task WHERE state = 'running' AND holder = ?",
	"fencing":          "SELECT COUNT(*) FROM exclusive_lease WHERE expires_at > 2 AND holder = ?",
}

// A claim that has run without its answer is given back when the server is back, and
// however the repetition ended: nobody listened, or the server let nobody in or took
// no writes.
func TestClaimedByNobody(t *testing.T) {
	t.Run("refused", func(t *testing.T) {
		matrix.Drivers(t, claimedByNobody(refused[pgx.Tx]()), claimedByNobody(refused[*sql.Tx]()), "postgres", "mysql", "mariadb")
	})
	t.Run("starting up", func(t *testing.T) {
		matrix.Drivers(t, claimedByNobody(startingUp[pgx.Tx]()), claimedByNobody(startingUp[*sql.Tx]()), "postgres")
	})
	t.Run("read-only", func(t *testing.T) {
		matrix.Drivers(t, claimedByNobody(readOnly[pgx.Tx]()), claimedByNobody(readOnly[*sql.Tx]()), "postgres")
	})
}

// absence is a way in which a server behind a proxy is away.
type absence[Tx any] struct {
	hint   string // what the driver says then
	params map[string]string
	// see is shown what clients send, before it is handed on, and may change it.
	see func(data []byte, away bool)
	// leave makes it so for new connections, until back is called.
	leave func(t *testing.T, target *matrix.Target[Tx], p *proxy.Proxy) (back func())
}

func claimedByNobody[Tx any](away absence[Tx]) func(*testing.T, *matrix.Target[Tx]) {
	return strategies.Each(func(t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
		if claimed[s.Name] == "" {
			t.Skip("it claims nothing by a statement of its own, or as another of these does")
		}
		testClaimedByNobody(t, target, s, away)
	})
}

func testClaimedByNobody[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx], away absence[Tx]) {
	ctx := t.Context()
	place := s.SetUp(t, target)
	holder := vanishes + " from " + s.Name
	p := proxy.Start(t, target.Addr(t))
	x := place.New(t, target.Another(t, matrix.Options{Addr: p.Addr(), Params: away.params}), exclusivetest.Config{TTL: time.Hour, Holder: holder})
	next := place.New(t, target, exclusivetest.Config{Wait: 30 * time.Second})
	key := place.MustKey(t)
	var gone atomic.Bool
	back := func() {}
	p.Intercept(func(data []byte) proxy.Verdict {
		away.see(data, gone.Load())
		if gone.Load() || !proxy.Mentions(data, holder) {
			return proxy.Pass
		}
		back = away.leave(t, target, p)
		gone.Store(true)
		return proxy.CutAfter
	})
	err := x.Do(ctx, key, func(context.Context, exclusive.Grant) error { t.Error("work runs"); return nil })
	if err == nil || !strings.Contains(err.Error(), away.hint) {
		t.Fatalf("Do gives %v; want %s", err, away.hint)
	}
	if n := target.Int(t, claimed[s.Name], holder); n != 1 {
		t.Errorf("%d keys were taken", n)
	}
	back()
	gone.Store(false)
	p.Intercept(func(data []byte) proxy.Verdict { away.see(data, false); return proxy.Pass })
	p.Cut() // what has seen it as it was
	err = next.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
		return next.Commit(ctx, g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "next") })
	})
	if err != nil {
		t.Errorf("the next holder: %v", err)
	}
	if body, n := place.Stored(t, key); body != "next" || n != 1 {
		t.Errorf("stored %q, %d results", body, n)
	}
}

func nothingToSee([]byte, bool) {}

func refused[Tx any]() absence[Tx] {
	return absence[Tx]{"connection refused", nil, nothingToSee, func(t *testing.T, _ *matrix.Target[Tx], p *proxy.Proxy) func() {
		again := p.Refuse()
		return func() {
			if err := again(); err != nil {
				t.Error(err)
			}
		}
	}}
}

// readOnly is PostgreSQL after a failover to a server that is not promoted yet.
func readOnly[Tx any]() absence[Tx] {
	const setting = "default_transaction_read_only"
	see := func(data []byte, away bool) {
		on := []byte(setting + "\x00on\x00") // in what begins a session
		if i := bytes.Index(data, on); i >= 0 && !away {
			copy(data[i:], setting+"\x00no\x00")
		}
	}
	return absence[Tx]{"25006", map[string]string{setting: "on"}, see, func(*testing.T, *matrix.Target[Tx], *proxy.Proxy) func() { return func() {} }}
}

// startingUp is PostgreSQL before it takes connections.
func startingUp[Tx any]() absence[Tx] {
	return absence[Tx]{"57P03", nil, nothingToSee, func(t *testing.T, target *matrix.Target[Tx], p *proxy.Proxy) func() {
		p.Retarget(startingServer(t))
		return func() { p.Retarget(target.Addr(t)) }
	}}
}

// startingServer answers each session with SQLSTATE 57P03.
func startingServer(t *testing.T) (addr string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Error(err)
		return ""
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			serving.Go(func() {
				defer conn.Close()
				var length uint32
				if err := binary.Read(conn, binary.BigEndian, &length); err != nil {
					return
				}
				if _, err := io.CopyN(io.Discard, conn, int64(length)-4); err != nil {
					return
				}
				body := "SFATAL\x00VFATAL\x00C57P03\x00Mthe database system is starting up\x00\x00"
				answer := append([]byte{'E'}, binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))...)
				_, _ = conn.Write(append(answer, body...)) // who has gone does not care
			})
		}
	})
	return listener.Addr().String()
}
