package servers

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// EnsureImages makes sure that the container engine has an image for each kind. One
// that can neither be found nor pulled is made from the Debian root of that kind,
// and the variable that names it is written to w as a shell command.
func EnsureImages(ctx context.Context, w io.Writer, kinds []Kind) (err error) {
	provider, err := engine(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	for _, kind := range kinds {
		pullErr := ensureImage(ctx, provider.Client(), kind.image())
		if pullErr == nil {
			continue
		}
		fmt.Fprintln(os.Stderr, pullErr)
		image, err := specs[kind].root.image(ctx, provider.Client())
		if err != nil {
			return fmt.Errorf("an image for %s: %w", kind, err)
		}
		if _, err := fmt.Fprintf(w, "export %s=%s\n", kind.imageVariable(), image); err != nil {
			return err
		}
	}
	return nil
}

// entrypoint makes an image of a Debian root behave like the official images, as
// far as this package uses them.
//
//go:embed entrypoint.sh
var entrypoint string

// image returns the name of an image of the root, made on first use.
func (r debianRoot) image(ctx context.Context, engine client.APIClient) (string, error) {
	root, err := r.ensure(ctx)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(root)
	if err != nil {
		return "", err
	}
	// The tag tells images of another entry point or of another root apart.
	tag := sha256.Sum256(fmt.Append(nil, entrypoint, r, info.ModTime().Unix()))
	name := fmt.Sprintf("exclusive-test/debian-%s:%x", r.suite, tag[:6])
	if _, err := engine.ImageInspect(ctx, name); !errdefs.IsNotFound(err) {
		return name, err
	}

	fmt.Fprintf(os.Stderr, "Making image %s from %s.\n", name, root)
	tar := exec.CommandContext(ctx, "tar", "--directory", root, "--create", "--one-file-system", ".")
	tar.Stderr = os.Stderr
	files, err := tar.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := tar.Start(); err != nil {
		return "", err
	}
	if err := importImage(ctx, engine, name, files); err != nil {
		return "", errors.Join(err, tar.Process.Kill(), tar.Wait())
	}
	if err := tar.Wait(); err != nil {
		// The engine takes half of an archive for an image.
		_, removeErr := engine.ImageRemove(ctx, name, client.ImageRemoveOptions{Force: true})
		return "", errors.Join(fmt.Errorf("tar: %w", err), removeErr)
	}
	return name, nil
}

func importImage(ctx context.Context, engine client.APIClient, name string, files io.Reader) error {
	source := client.ImageImportSource{SourceName: "-", Source: files}
	argv, err := json.Marshal([]string{"sh", "-ec", entrypoint, "entrypoint"})
	if err != nil {
		return err
	}
	response, err := engine.ImageImport(ctx, source, name, client.ImageImportOptions{
		// A volume, as data on the layers of an image is slow.
		Changes: []string{"ENTRYPOINT " + string(argv), "VOLUME /srv/data"},
	})
	if err != nil {
		return fmt.Errorf("importing image %s: %w", name, err)
	}
	defer response.Close()
	report, err := io.ReadAll(response)
	if err != nil || strings.Contains(string(report), `"error"`) {
		return fmt.Errorf("importing image %s: %w", name, cmp.Or(err, errors.New(string(report))))
	}
	return nil
}
