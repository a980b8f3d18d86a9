// Package proxy is a TCP proxy between a test and its server, which loses what
// the test wants lost and counts round trips.
package proxy

import (
	"bytes"
	"encoding/hex"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Verdict says what becomes of a piece of data that a client sends.
type Verdict int

const (
	// Pass hands it on.
	Pass Verdict = iota
	// Swallow loses it, and all that follows on this connection.
	Swallow
	// Mute hands it on, and loses all answers from then on.
	Mute
	// Cut closes the connection instead of handing it on.
	Cut
	// CutAfter hands it on, and closes the connection to the client when the
	// answer arrives.
	CutAfter
)

// Proxy forwards connections to a server.
type Proxy struct {
	target atomic.Pointer[string]
	addr   string
	wait   sync.WaitGroup

	intercept atomic.Pointer[func([]byte) Verdict]
	trips     atomic.Int64

	mu       sync.Mutex
	listener net.Listener
	closed   bool
	conns    map[*link]struct{}
}

// Start starts a proxy in front of target. It ends with the test.
func Start(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{addr: listener.Addr().String(), listener: listener, conns: make(map[*link]struct{})}
	p.Retarget(target)
	p.wait.Go(func() { p.accept(listener) })
	t.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		_ = p.listener.Close()
		p.mu.Unlock()
		p.Cut()
		p.wait.Wait()
	})
	return p
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.addr }

// Retarget puts the proxy in front of another server, for new connections.
func (p *Proxy) Retarget(target string) { p.target.Store(&target) }

// Refuse lets nobody connect any more, as while a server restarts, until again is
// called. Connections stay as they are.
func (p *Proxy) Refuse() (again func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.listener.Close()
	return func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.closed {
			return nil
		}
		listener, err := net.Listen("tcp", p.addr)
		if err != nil {
			return err
		}
		p.listener = listener
		p.wait.Go(func() { p.accept(listener) })
		return nil
	}
}

// Intercept asks judge about every piece of data that a client sends from now
// on. Until judge returns the piece waits. It may change the piece's bytes, but not
// their number. nil passes all.
func (p *Proxy) Intercept(judge func(data []byte) Verdict) {
	if judge == nil {
		p.intercept.Store(nil)
		return
	}
	p.intercept.Store(&judge)
}

// IsCommit reports whether data that a client sends is COMMIT, and no statement
// that has the word in a name.
func IsCommit(data []byte) bool {
	data = bytes.ToLower(data)
	for _, name := range []string{"committed", "autocommit", "exclusive_commit"} {
		data = bytes.ReplaceAll(data, []byte(name), nil)
	}
	return bytes.Contains(data, []byte("commit"))
}

// Mentions reports whether data that a client sends has a text in it, as it is or in
// hexadecimal, as the adapter of MySQL and MariaDB writes arguments.
func Mentions(data []byte, text string) bool {
	return bytes.Contains(data, []byte(text)) || bytes.Contains(data, []byte(hex.EncodeToString([]byte(text))))
}

// RoundTrips counts how often, on all connections, a client has spoken after
// the server had, or first of all.
func (p *Proxy) RoundTrips() int64 { return p.trips.Load() }

// Cut closes all connections. New ones are still accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.conns {
		l.close()
	}
}

func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // closed
		}
		p.wait.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", *p.target.Load())
	if err != nil {
		_ = client.Close() // the client sees a broken connection, as it should
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	p.conns[l] = struct{}{}
	if p.closed {
		l.close()
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.requests(l) })
	both.Go(func() { l.answers() })
	both.Wait()
	p.mu.Lock()
	delete(p.conns, l)
	p.mu.Unlock()
}

// link is one connection through the proxy.
type link struct {
	client, server net.Conn

	asking   atomic.Bool // the client spoke last
	mute     atomic.Bool
	cutAfter atomic.Bool
}

// close ends both sides. Errors of connections that are gone say nothing new.
func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

func (p *Proxy) requests(l *link) {
	defer l.close()
	buf := make([]byte, 64<<10)
	swallow := false
	for {
		n, err := l.client.Read(buf)
		if err != nil {
			return
		}
		if !l.asking.Swap(true) {
			p.trips.Add(1)
		}
		verdict := Pass
		if judge := p.intercept.Load(); judge != nil && !swallow {
			verdict = (*judge)(buf[:n])
		}
		switch verdict {
		case Cut:
			return
		case Swallow:
			swallow = true
		case Mute:
			l.mute.Store(true)
		case CutAfter:
			l.cutAfter.Store(true)
		}
		if swallow {
			continue
		}
		if _, err := l.server.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (l *link) answers() {
	defer l.close()
	buf := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buf)
		if err != nil || l.cutAfter.Load() {
			return
		}
		if l.mute.Load() {
			continue
		}
		l.asking.Store(false)
		if _, err := l.client.Write(buf[:n]); err != nil {
			return
		}
	}
}
