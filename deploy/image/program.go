package image

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// program describes a cleat binary and its source.
type program struct {
	architecture string
	version      string
	revision     string    // of the source tree, with suffix -modified if changed; empty if not recorded
	committed    time.Time // zero if not recorded
}

const mainPackage = "github.com/cleatproject/cleat/cmd/cleat"

// inspect reads the binary without running it: it can be for another
// architecture.
func inspect(ctx context.Context, binary, source string, of contents) (program, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return program{}, fmt.Errorf("the program for the image: %w", err)
	}
	if info.Path != mainPackage {
		return program{}, fmt.Errorf("the program for the image, %s, is %s, want cleat", binary, info.Path)
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	for key, want := range of.settings {
		if set[key] != want {
			return program{}, fmt.Errorf("%s was built with %s=%s, not with %s=%s, which image %s needs: build it with %s", binary, key, set[key], key, want, of.name, of.flags)
		}
	}
	p := program{architecture: set["GOARCH"], revision: set["vcs.revision"]}
	if set["vcs.modified"] == "true" {
		p.revision += "-modified"
	}
	if at := set["vcs.time"]; at != "" {
		if p.committed, err = time.Parse(time.RFC3339, at); err != nil {
			return program{}, fmt.Errorf("the program for the image: %w", err)
		}
	}
	p.version, err = version(ctx, source, of)
	return p, err
}

var releaseLine = regexp.MustCompile(`(?m)^const release = "([0-9]+\.[0-9]+\.[0-9]+(?:-[0-9A-Za-z.-]+)?)"$`)

// version returns the version in the source of cleat version.
func version(ctx context.Context, source string, of contents) (string, error) {
	dir, err := goTool(ctx, source, of, "list", "-f", "{{.Dir}}", mainPackage)
	if err != nil {
		return "", err
	}
	file := filepath.Join(strings.TrimSpace(dir), "version.go")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("the version of cleat: %w", err)
	}
	m := releaseLine.FindSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("the version of cleat: %s has no line like const release = \"1.2.3\"", file)
	}
	return string(m[1]), nil
}

// goTool runs the go command in a directory, with the settings of the
// variant's build.
func goTool(ctx context.Context, dir string, of contents, args ...string) (string, error) {
	if tags := of.settings["-tags"]; tags != "" && args[0] == "list" {
		args = append([]string{"list", "-tags=" + tags}, args[1:]...)
	}
	cmd := exec.CommandContext(ctx, cmp.Or(os.Getenv("GO"), "go"), args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+of.settings["CGO_ENABLED"])
	return output(cmd)
}
