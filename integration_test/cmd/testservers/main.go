// Command testservers starts the servers that the tests need.
//
//	testservers run [-kinds postgres,redis] -- command args…
//
// starts them, tells the command where they are through environment variables
// such as EXCLUSIVE_TEST_POSTGRES, and ends them when the command has ended. Its
// exit code is that of the command. EXCLUSIVE_TEST_PARALLEL is for go test's
// -parallel: how many tests this machine carries at a time.
//
//	testservers images [-kinds postgres,redis]
//
// makes sure that the container engine has an image for each kind: the official
// one where it can be pulled, or else one made from a Debian root. It prints the
// variables to set for the latter, to be taken up with eval "$(testservers images)".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/exclusive-go/exclusive/integration_test/servers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := dispatch(ctx, os.Args[1:])
	stop()
	if err == nil {
		return
	}
	code := 1
	exit := new(exec.ExitError)
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		code = exit.ExitCode()
	}
	if err != error(exit) { // the command has said itself why it failed
		fmt.Fprintln(os.Stderr, "testservers:", err)
	}
	os.Exit(code)
}

const usage = `usage: testservers run [-kinds list] -- command args…
       testservers images [-kinds list]`

func dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("no command\n" + usage)
	}
	if help := []string{"-h", "-help", "--help", "help"}; slices.Contains(help, args[0]) {
		fmt.Println(usage)
		return nil
	}
	flags := flag.NewFlagSet("testservers "+args[0], flag.ContinueOnError)
	list := flags.String("kinds", "", "a list out of "+fmt.Sprint(servers.Kinds())+"; all by default")
	if err := flags.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	kinds, err := parseKinds(*list)
	if err != nil {
		return err
	}
	switch args[0] {
	case "run":
		if flags.NArg() == 0 {
			return errors.New("no command to run\n" + usage)
		}
		return run(ctx, kinds, flags.Args())
	case "images":
		return servers.EnsureImages(ctx, os.Stdout, kinds)
	default:
		return fmt.Errorf("unknown command %q\n%s", args[0], usage)
	}
}

func parseKinds(list string) ([]servers.Kind, error) {
	if list == "" {
		return servers.Kinds(), nil
	}
	var kinds []servers.Kind
	for name := range strings.SplitSeq(list, ",") {
		kind := servers.Kind(name)
		if !slices.Contains(servers.Kinds(), kind) {
			return nil, fmt.Errorf("unknown kind of server %q: use a list out of %v", name, servers.Kinds())
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

func run(ctx context.Context, kinds []servers.Kind, argv []string) (err error) {
	if _, set := os.LookupEnv("EXCLUSIVE_TEST_REQUIRE"); !set {
		if err := os.Setenv("EXCLUSIVE_TEST_REQUIRE", joinKinds(kinds)); err != nil {
			return err
		}
	}
	begin := time.Now()
	started, err := startAll(ctx, kinds)
	defer func() {
		for _, s := range started {
			if closeErr := s.Close(); closeErr != nil {
				err = errors.Join(err, fmt.Errorf("ending %s: %w", s.Kind, closeErr))
			}
		}
	}()
	if err != nil {
		return err
	}
	if err := printTable(started, time.Since(begin)); err != nil {
		return err
	}
	if err := chooseParallel(ctx, started); err != nil {
		return err
	}
	begin = time.Now()
	err = runCommand(ctx, argv, started)
	fmt.Fprintf(os.Stderr, "testservers: %s ran for %.1fs\n", argv[0], time.Since(begin).Seconds())
	return err
}

func joinKinds(kinds []servers.Kind) string {
	if len(kinds) == len(servers.Kinds()) {
		return "all"
	}
	var names []string
	for _, kind := range kinds {
		names = append(names, string(kind))
	}
	return strings.Join(names, ",")
}

// startAll starts the servers at the same time. It returns those that run along
// with an error about those that should but do not. A server that is missing and
// not required is left out with a word.
func startAll(ctx context.Context, kinds []servers.Kind) ([]*servers.Server, error) {
	all := make([]*servers.Server, len(kinds))
	errs := make([]error, len(kinds))
	var wg sync.WaitGroup
	for i, kind := range kinds {
		wg.Go(func() { all[i], errs[i] = servers.Start(ctx, kind) })
	}
	wg.Wait()

	running := slices.DeleteFunc(all, func(s *servers.Server) bool { return s == nil })
	if ctx.Err() != nil {
		return running, fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	for i, kind := range kinds {
		if errs[i] == nil || !errors.As(errs[i], new(*servers.MissingError)) {
			continue
		}
		required, err := servers.Required(kind)
		if err != nil {
			errs[i] = err
		} else if !required {
			fmt.Fprintf(os.Stderr, "testservers: going on without %s: %v\n", kind, errs[i])
			errs[i] = nil
		}
	}
	return running, errors.Join(errs...)
}

func printTable(started []*servers.Server, total time.Duration) error {
	w := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SERVER\tVERSION\tSOURCE\tSECONDS")
	for _, s := range started {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.1f\n", s.Kind, s.Version, s.Source, s.StartedIn.Seconds())
	}
	fmt.Fprintf(w, "all\t\t\t%.1f\n", total.Seconds())
	return w.Flush()
}

// runCommand runs the command in a process group of its own, to be able to end its
// children too: go test does not pass a signal on to the tests. For that the
// command gets no terminal input.
func runCommand(ctx context.Context, argv []string, started []*servers.Server) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = os.Environ()
	for _, s := range started {
		cmd.Env = append(cmd.Env, s.Kind.Variable()+"="+s.DSN)
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		// What has not ended by now is not going to.
		if killErr := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); killErr != nil && !errors.Is(killErr, syscall.ESRCH) {
			err = errors.Join(err, killErr)
		}
		return fmt.Errorf("interrupted: %w", errors.Join(context.Cause(ctx), err))
	}
	return err
}
