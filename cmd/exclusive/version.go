package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exclusive-go/exclusive/internal/templates"
)

const versionHelp = `Says which version this is, of what it was built, and which versions the
migrations have that it copies and makes.

The exit code is 0, 2 for wrong flags, or 3 if it could not be written.`

// version is what the command is. Unknown parts are empty.
type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"` // of the revision
	Modified bool   `json:"modified"`       // the revision is not all
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// Templates are the versions of the migrations by their names.
	Templates map[string]int `json:"templates"`
}

func versionCommand(env environment) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Say which version this is", Long: versionHelp,
		Example: "  exclusive version\n  exclusive version --json", Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			info, _ := debug.ReadBuildInfo()
			v, err := versionOf(info)
			if err != nil {
				return err
			}
			return write(env.stdout, asJSON, v, func(w io.Writer, v version) error {
				_, err := fmt.Fprint(w, v)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write it as JSON")
	return cmd
}

// versionOf reads what the Go tool has noted; info may be nil.
func versionOf(info *debug.BuildInfo) (version, error) {
	v := version{Version: "unknown", Templates: make(map[string]int)}
	if info != nil {
		v.Version, v.Go = cmp.Or(info.Main.Version, v.Version), info.GoVersion
		set := make(map[string]string)
		for _, s := range info.Settings {
			set[s.Key] = s.Value
		}
		v.Revision, v.Time, v.Modified = set["vcs.revision"], set["vcs.time"], set["vcs.modified"] == "true"
		v.Platform = strings.Trim(set["GOOS"]+"/"+set["GOARCH"], "/")
	}
	for _, d := range templates.Dialects() {
		list, err := templates.Of(d, templates.Strategies())
		if err != nil {
			return v, err
		}
		for _, t := range list {
			v.Templates[t.Name] = max(v.Templates[t.Name], t.Version)
		}
	}
	return v, nil
}

func (v version) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "exclusive %s", v.Version)
	if v.Revision != "" {
		fmt.Fprintf(&b, "\nrevision  %s %s", v.Revision, v.Time)
		if v.Modified {
			b.WriteString(", modified")
		}
	}
	fmt.Fprintf(&b, "\nbuilt by  %s %s\nmigrations", v.Go, v.Platform)
	for _, name := range slices.Sorted(maps.Keys(v.Templates)) {
		fmt.Fprintf(&b, "\n  %s version %d", name, v.Templates[name])
	}
	return b.String() + "\n"
}
