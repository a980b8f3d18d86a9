package doctor_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/integration_test/rediscluster"
	"github.com/exclusive-go/exclusive/integration_test/servers"
)

// onLeash runs a program until its own standard input ends: that is when the
// test says so, or its process is gone.
const onLeash = `"$@" </dev/null >log 2>&1 & child=$!; read -r _; kill -9 "$child"; wait "$child" 2>/dev/null; true`

// pgbouncer starts one in front of the shared server and returns its address.
func pgbouncer(t *testing.T, mode string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			t.Skip("pgbouncer is not installed")
		}
	}
	u, err := url.Parse(servers.Shared(t, servers.Postgres).DSN)
	if err != nil {
		t.Fatal("the DSN of the tests is not a URL")
	}
	secret, _ := u.User.Password()
	// It listens on the port that was free a moment ago.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(l.Addr().String())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf("[databases]\n* = host=%s port=%s user=%s password=%s\n[pgbouncer]\nlisten_addr = %s\nlisten_port = %s\n"+
		"unix_socket_dir =\nauth_type = any\npool_mode = %s\nignore_startup_parameters = search_path\n",
		u.Hostname(), u.Port(), u.User.Username(), secret, host, port, mode)
	if os.Geteuid() == 0 {
		text += "user = nobody\n" // it does not run as root
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", onLeash, "sh", program, config)
	cmd.Dir = dir
	leash, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = leash.Close()
		_ = cmd.Wait()
		if log, err := os.ReadFile(filepath.Join(dir, "log")); t.Failed() && err == nil {
			t.Logf("pgbouncer says\n%s", log)
		}
	})
	address := net.JoinHostPort(host, port)
	var dialer net.Dialer
	rediscluster.Await(t, "pgbouncer", func(ctx context.Context) error {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	return address
}

// A pooler is found, and its mode is.
func TestPooler(t *testing.T) {
	t.Parallel()
	for mode, status := range map[string]string{"session": "ok", "transaction": "ok", "statement": "fail"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			address := pgbouncer(t, mode)
			f := diagnose(t, with(t, servers.Shared(t, servers.Postgres).DSN, func(u *url.URL) { u.Host = address }))
			f.want(t, map[string]string{"pooler": status, "connect": "ok"})
			if !strings.Contains(f["pooler"].Found, mode) {
				t.Errorf("%+v", f["pooler"])
			}
		})
	}
}
