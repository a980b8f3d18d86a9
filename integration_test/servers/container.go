package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// image is the name of the image to run, unless the environment names another.
func (k Kind) image() string { return cmp.Or(os.Getenv(k.imageVariable()), specs[k].image) }

func (k Kind) imageVariable() string { return k.Variable() + "_IMAGE" }

// tempDirLabel tells the containers of one run from those of others on the same
// engine, as the temporary directory does for server programs.
const tempDirLabel = "exclusive-test.tempdir"

func startContainer(ctx context.Context, kind Kind, options ...string) (_ *Server, err error) {
	spec := specs[kind]
	provider, err := engine(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	if err := ensureImage(ctx, provider.Client(), kind.image()); err != nil {
		return nil, unavailable{err}
	}

	request := testcontainers.ContainerRequest{
		Image:        kind.image(),
		Env:          spec.env,
		Cmd:          slices.Concat(spec.command, options),
		ExposedPorts: []string{fmt.Sprintf("%d/tcp", spec.port)},
		Labels:       map[string]string{tempDirLabel: os.TempDir()},
	}
	if spec.initSQL != "" {
		request.Files = []testcontainers.ContainerFile{{
			Reader:            strings.NewReader(spec.initSQL),
			ContainerFilePath: "/docker-entrypoint-initdb.d/test.sql",
			FileMode:          0o644,
		}}
	}
	container, err := provider.CreateContainer(ctx, request)
	if container != nil {
		defer func() {
			if err != nil {
				err = errors.Join(err, testcontainers.TerminateContainer(container))
			}
		}()
	}
	if err != nil {
		return nil, err
	}
	remove := func() error { return testcontainers.TerminateContainer(container) }
	if cli, err := exec.LookPath("docker"); err == nil {
		remove, err = atExit(`"$1" --host "$2" rm --force --volumes "$3" >/dev/null`,
			cli, provider.Client().DaemonHost(), container.GetContainerID())
		if err != nil {
			return nil, err
		}
	}
	if err := container.Start(ctx); err != nil {
		return nil, err
	}
	dsns, err := containerDSNs(ctx, container, spec)
	if err != nil {
		return nil, err
	}
	exited, stopWatching := watch(ctx, container)
	defer stopWatching()
	dsn, version, err := await(ctx, kind, exited, dsns...)
	if err != nil {
		return nil, fmt.Errorf("a container of %s: %w; the end of its log:\n%s\n"+
			"EXCLUSIVE_TEST_SOURCES=program,debian leaves containers out", kind.image(), err, containerLog(ctx, container))
	}
	return &Server{DSN: dsn, Version: version, close: remove}, nil
}

// configure sets testcontainers up before its first use. Its reaper is one more
// image to pull, and is not needed where the docker command can remove what a
// killed process left behind.
var configure = sync.OnceValue(func() error {
	log.SetDefault(log.NewNoopLogger()) // what was started is told by our caller
	if _, set := os.LookupEnv("TESTCONTAINERS_RYUK_DISABLED"); set {
		return nil
	}
	if _, err := exec.LookPath("docker"); err != nil {
		return nil
	}
	return os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
})

// engine connects to the container engine.
func engine(ctx context.Context) (*testcontainers.DockerProvider, error) {
	if err := configure(); err != nil {
		return nil, err
	}
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return nil, unavailablef("no container engine: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := provider.Health(ctx); err != nil {
		return nil, errors.Join(unavailablef("the container engine does not answer: %w", err), provider.Close())
	}
	return provider, nil
}

// ensureImage pulls the image unless the engine has it. testcontainers would do so
// too, but tries for many minutes where there is no registry.
func ensureImage(ctx context.Context, engine client.APIClient, image string) error {
	_, err := engine.ImageInspect(ctx, image)
	if !errdefs.IsNotFound(err) {
		return err
	}
	if err := pull(ctx, engine, image); err != nil {
		return fmt.Errorf("image %s can neither be found nor pulled: %w", image, err)
	}
	return nil
}

// pull gives up when nothing arrives for some time, however long the whole takes.
func pull(ctx context.Context, engine client.APIClient, image string) error {
	const patience = 15 * time.Second
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(patience, func() { cancel(errors.New("the registry does not answer")) })
	defer silence.Stop()

	response, err := engine.ImagePull(ctx, image, client.ImagePullOptions{})
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	for message, err := range response.JSONMessages(ctx) {
		silence.Reset(patience)
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		if message.Error != nil {
			return message.Error
		}
	}
	return context.Cause(ctx)
}

// containerDSNs are the ways to reach the container's server. Which of them works
// depends on where the engine and the tests run: on the same machine, in sibling
// containers, or apart.
func containerDSNs(ctx context.Context, container testcontainers.Container, spec spec) ([]string, error) {
	port, err := container.MappedPort(ctx, fmt.Sprintf("%d/tcp", spec.port))
	if err != nil {
		return nil, err
	}
	host, err := container.Host(ctx)
	if err != nil {
		return nil, err
	}
	ip, err := container.ContainerIP(ctx)
	if err != nil {
		return nil, err
	}
	dsns := []string{
		spec.dsn(net.JoinHostPort("127.0.0.1", port.Port())),
		spec.dsn(net.JoinHostPort(ip, fmt.Sprint(spec.port))),
	}
	if host != "localhost" {
		dsns = append(dsns, spec.dsn(net.JoinHostPort(host, port.Port())))
	}
	return dsns, nil
}

// watch tells when the container is no longer running.
func watch(ctx context.Context, container testcontainers.Container) (<-chan struct{}, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	exited := make(chan struct{})
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
			if state, err := container.State(ctx); err == nil && !state.Running {
				close(exited)
				return
			}
		}
	}()
	return exited, cancel
}

func containerLog(ctx context.Context, container testcontainers.Container) string {
	logs, err := container.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer logs.Close()
	text, err := io.ReadAll(logs)
	if err != nil {
		return err.Error()
	}
	return lastLines(text)
}
