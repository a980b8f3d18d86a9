// Package rediscluster starts Redis servers of a test's own: single ones with
// settings that a shared server must not have, replicas, a Sentinel and a
// Cluster. They are the redis-server program of this machine, and end with the
// test, or with its process, however that ends.
package rediscluster

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is a running redis-server.
type Server struct {
	Addr string
	Dir  string // where it keeps its files

	leash io.Closer // the server lives as long as it is open
	ended chan struct{}
	once  sync.Once
}

// onLeash runs a program until its own standard input ends: that is when
// the test says so, or its process is gone.
const onLeash = `"$@" </dev/null >log 2>&1 & child=$!; read -r _; kill -9 "$child"; wait "$child" 2>/dev/null; true`

// Start starts a server with settings such as "--maxmemory", "10mb".
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	return start(t, freePort(t), settings...)
}

func start(t testing.TB, port int, settings ...string) *Server {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("these tests start servers of their own: install redis-server (%v)", err)
	}
	dir := t.TempDir()
	args := []string{"-c", onLeash, "sh", program}
	if len(settings) > 0 && settings[0] == "--sentinel" {
		config := filepath.Join(dir, "sentinel.conf") // Sentinel rewrites it
		if err := os.WriteFile(config, []byte(settings[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, config, "--sentinel", "--port", strconv.Itoa(port))
	} else {
		args = append(args, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--save", "", "--dir", dir)
		args = append(args, settings...)
	}
	cmd := exec.Command("sh", args...)
	cmd.Dir = dir
	leash, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &Server{Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Dir: dir, leash: leash, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // killed, as it should be
		close(s.ended)
	}()
	t.Cleanup(s.Kill)
	client := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer client.Close()
	Await(t, "start of redis-server", func(ctx context.Context) error {
		err := client.Ping(ctx).Err()
		if err != nil && strings.HasPrefix(err.Error(), "NOAUTH") {
			return nil // it runs
		}
		return err
	})
	return s
}

// Kill ends the server as a crash does.
func (s *Server) Kill() {
	s.once.Do(func() { _ = s.leash.Close() })
	<-s.ended
}

// Client opens a client that is closed when the test ends.
func (s *Server) Client(t testing.TB) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: s.Addr})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// StartReplica starts a replica of primary that has its data.
func StartReplica(t testing.TB, primary *Server, settings ...string) *Server {
	t.Helper()
	host, port, _ := net.SplitHostPort(primary.Addr)
	replica := Start(t, append([]string{"--replicaof", host + " " + port, "--repl-diskless-sync-delay", "0"}, settings...)...)
	client := replica.Client(t)
	Await(t, "replication", func(ctx context.Context) error {
		info, err := client.Info(ctx, "replication").Result()
		if err == nil && !strings.Contains(info, "master_link_status:up") {
			err = fmt.Errorf("not in step: %s", info)
		}
		return err
	})
	return replica
}

// StartSentinel starts a Sentinel that watches primary under the name "main"
// and has seen as many replicas.
func StartSentinel(t testing.TB, primary *Server, replicas int) *Server {
	t.Helper()
	host, port, _ := net.SplitHostPort(primary.Addr)
	s := start(t, freePort(t), "--sentinel", fmt.Sprintf(`bind 127.0.0.1
sentinel monitor main %s %s 1
sentinel down-after-milliseconds main 5000
sentinel failover-timeout main 3000
`, host, port))
	client := redis.NewSentinelClient(&redis.Options{Addr: s.Addr})
	defer client.Close()
	Await(t, "Sentinel to see the replicas", func(ctx context.Context) error {
		seen, err := client.Replicas(ctx, "main").Result()
		if err == nil && len(seen) < replicas {
			err = fmt.Errorf("%d replicas", len(seen))
		}
		return err
	})
	return s
}

// StartCluster starts a cluster of three primaries, of which each goes on without the
// others.
func StartCluster(t testing.TB) []*Server {
	t.Helper()
	const slots = 16384
	nodes := make([]*Server, 3)
	for i := range nodes {
		nodes[i] = Start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "15000", "--cluster-require-full-coverage", "no")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for i, node := range nodes {
		client := node.Client(t)
		if err := client.ClusterAddSlotsRange(ctx, i*slots/3, (i+1)*slots/3-1).Err(); err != nil {
			t.Fatal(err)
		}
		host, port, _ := net.SplitHostPort(nodes[0].Addr)
		if i > 0 {
			if err := client.ClusterMeet(ctx, host, port).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, node := range nodes {
		client := node.Client(t)
		Await(t, "the cluster", func(ctx context.Context) error {
			info, err := client.ClusterInfo(ctx).Result()
			if err == nil && (!strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:3")) {
				err = fmt.Errorf("not ready: %s", info)
			}
			return err
		})
	}
	return nodes
}

// Await asks until there is no error.
func Await(t testing.TB, what string, ask func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s: %v", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// freePort picks a port outside of the range that the kernel hands out, and such
// that the cluster's second port is free as well.
func freePort(t testing.TB) int {
	t.Helper()
	const second = 10000 // so much higher is the port on which a cluster's nodes talk
	for {
		if port := 10000 + rand.IntN(9000); isFree(t, port) && isFree(t, port+second) {
			return port
		}
	}
}

func isFree(t testing.TB, port int) bool {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return true
}
