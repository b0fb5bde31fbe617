// Package programs builds the unmodified peers of the Kubernetes tests from
// their Go modules and caches them outside the source tree: Kubernetes, the CSI
// sidecars, CSI-Addons and Helm. Their versions are set only in the go.mod
// files below this directory and in tools/helm.mod.
package programs

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/test/tree"
)

// Set is a directory of programs built by Build.
type Set struct {
	Dir string
}

// Build builds the named programs, or all except e2e.test if none is named, and
// returns their directory. Cached programs are not rebuilt; progress goes to
// log. Concurrent calls from any number of processes are safe: one builds, the
// others wait.
//
// CLEAT_KUBERNETES=1.36 selects that minor version of Kubernetes instead of the
// newest one.
//
// The cache is below CLEAT_CACHE, else below cleat in the user's cache
// directory. A cold build of all programs takes about 7 minutes on two cores, 5
// GB in the go command's caches and 1 GB in this one.
func Build(ctx context.Context, log io.Writer, want ...string) (Set, error) {
	root, err := tree.Root()
	if err != nil {
		return Set{}, fmt.Errorf("build the programs of Kubernetes: %w", err)
	}
	dir, err := cacheDir()
	if err != nil {
		return Set{}, err
	}
	kubernetes := os.Getenv("CLEAT_KUBERNETES")
	if kubernetes != "" && !slices.Contains(older(), kubernetes) {
		return Set{}, fmt.Errorf("CLEAT_KUBERNETES is %q, want nothing or one of %s", kubernetes, strings.Join(older(), ", "))
	}
	return (&builder{root: root, cache: dir, modules: modules(kubernetes), log: log}).build(ctx, want)
}

// Names returns the names of all programs, in build order.
func Names() []string { return names(modules("")) }

// Path returns the path of a program.
func (s Set) Path(name string) string { return filepath.Join(s.Dir, name) }

// CRDs returns the files of the CRDs of "snapshot" or "csi-addons", which are
// built with any program of the sidecars or of CSI-Addons.
func (s Set) CRDs(of string) ([]string, error) {
	known := crdNames(modules(""))
	if !slices.Contains(known, of) {
		return nil, fmt.Errorf("custom resource definitions of %q: want one of %s", of, strings.Join(known, ", "))
	}
	files, err := filepath.Glob(filepath.Join(s.Dir, crdsDir, of, "*.yaml"))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("none in %s: build a program of the same module", s.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("custom resource definitions of %q: %w", of, err)
	}
	return files, nil
}

// cacheDir returns the directory of the sets.
func cacheDir() (string, error) {
	dir := os.Getenv("CLEAT_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no cache directory for Kubernetes' programs (set CLEAT_CACHE): %w", err)
		}
		dir = filepath.Join(user, "cleat")
	}
	dir, err := filepath.Abs(filepath.Join(dir, "kubernetes"))
	if err != nil {
		return "", fmt.Errorf("CLEAT_CACHE: %w", err)
	}
	return dir, nil
}
