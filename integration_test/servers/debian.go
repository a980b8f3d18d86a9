package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// debianRoot describes a Debian system in a folder.
type debianRoot struct {
	suite    string
	packages string // separated by commas
	addUser  string // a user that the packages need but do not make
}

func startDebian(ctx context.Context, kind Kind, options ...string) (*Server, error) {
	root, err := specs[kind].root.ensure(ctx)
	if err != nil {
		return nil, err
	}
	return place{root}.start(ctx, kind, options...)
}

// ensure returns the folder of the root, made on first use and kept.
func (r debianRoot) ensure(ctx context.Context) (_ string, err error) {
	if os.Geteuid() != 0 {
		return "", unavailablef("a Debian root needs to be made and entered by root")
	}
	for _, program := range []string{"debootstrap", "unshare", "chroot"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", unavailablef("a Debian root needs %s: %w", program, err)
		}
	}
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	root := filepath.Join(cache, "debian-"+r.suite+"-"+strings.ReplaceAll(r.packages, ",", "-"))

	// Several test processes may want it at once: one makes it, the others wait.
	lock, err := os.Create(root + ".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		return root, err
	}
	fmt.Fprintf(os.Stderr, "Making a Debian root with %s in %s. This takes a minute or two, once.\n", r.packages, root)

	// Only a finished root gets the name.
	unfinished := root + ".unfinished"
	if err := os.RemoveAll(unfinished); err != nil {
		return "", err
	}
	args := []string{"--mount", "sh", "-ec", makeRoot, "sh", unfinished, r.suite, r.packages, r.addUser}
	if mirror := debianMirror(ctx); mirror != "" {
		args = append(args, mirror)
	}
	log, err := os.Create(root + ".log")
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd := exec.Command("unshare", args...)
	cmd.SysProcAttr = childAttr(syscall.SIGTERM, nil)
	cmd.Stdout, cmd.Stderr = log, log
	build, err := startProcess(cmd)
	if err != nil {
		return "", err
	}
	select {
	case <-build.exited:
	case <-ctx.Done():
		// debootstrap has children of its own: end the whole group.
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-build.exited
		return "", errors.Join(context.Cause(ctx), err)
	}
	if build.err != nil {
		return "", fmt.Errorf("making a Debian root: %w; the end of %s:\n%s", build.err, log.Name(), logTail(log.Name()))
	}
	return root, os.Rename(unfinished, root)
}

// makeRoot runs in a mount namespace of its own, so that the mounts of debootstrap
// vanish whatever happens. What is removed at the end is a third of the size.
const makeRoot = `
root=$1 suite=$2 packages=$3 user=$4
shift 4
debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$@"
if [ "$user" ] && ! grep -q "^$user:" "$root/etc/passwd"; then
	chroot "$root" useradd --system --user-group --no-create-home "$user"
fi
rm -rf "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* \
	"$root"/var/lib/mysql/* "$root"/var/lib/postgresql/*
`

// debianMirror is where this machine's apt gets Debian from, so that one set-up of
// mirrors serves both. It is empty, for debootstrap's default, where apt gets
// something else or is missing.
func debianMirror(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets",
		"--format", "$(ORIGIN) $(LABEL) $(REPO_URI)", "Created-By: Packages").Output()
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(out)) {
		if mirror, ok := strings.CutPrefix(strings.TrimSpace(line), "Debian Debian "); ok {
			return mirror
		}
	}
	return ""
}

func cacheFolder() (string, error) {
	folder := os.Getenv("EXCLUSIVE_TEST_CACHE")
	if folder == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("set EXCLUSIVE_TEST_CACHE to a folder for Debian roots: %w", err)
		}
		folder = filepath.Join(user, "exclusive-test")
	}
	// Programs in it run as other users.
	return folder, os.MkdirAll(folder, 0o755)
}
