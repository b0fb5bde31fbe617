// Package programs builds the peers of the tests on a real Kubernetes from
// their Go modules, unmodified, and keeps them in a cache outside the source
// tree: Kubernetes itself, the CSI sidecars, CSI-Addons and Helm. Their
// versions stand in the go.mod files of the directories beside this file and in
// tools/helm.mod, nowhere else.
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

// Set is a directory of programs that Build has filled.
type Set struct {
	Dir string
}

// Build makes the programs of those names, or all of them but e2e.test if none
// is named, and returns where they are. What the cache has is not built again;
// log hears of what takes long. Any number of processes may call it at once:
// one builds and the others wait for it.
//
// The cache lies below CLEAT_CACHE, else below cleat in the user's cache
// directory. A cold build of all takes about 7 minutes on two cores, 5 GB in
// the go command's own caches and 1 GB in this one.
func Build(ctx context.Context, log io.Writer, want ...string) (Set, error) {
	root, err := tree.Root()
	if err != nil {
		return Set{}, fmt.Errorf("build the programs of Kubernetes: %w", err)
	}
	dir, err := cacheDir()
	if err != nil {
		return Set{}, err
	}
	return (&builder{root: root, cache: dir, modules: modules(), log: log}).build(ctx, want)
}

// Names are the names of all programs, in the order of their build.
func Names() []string { return names(modules()) }

// Path is where the program of that name lies.
func (s Set) Path(name string) string { return filepath.Join(s.Dir, name) }

// CRDs are the files of the custom resource definitions of "snapshot" or
// "csi-addons", which come with any program of the sidecars and of CSI-Addons.
func (s Set) CRDs(of string) ([]string, error) {
	known := crdNames(modules())
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

// cacheDir is where the sets lie.
func cacheDir() (string, error) {
	dir := os.Getenv("CLEAT_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no place for the cache of Kubernetes' programs (set CLEAT_CACHE): %w", err)
		}
		dir = filepath.Join(user, "cleat")
	}
	dir, err := filepath.Abs(filepath.Join(dir, "kubernetes"))
	if err != nil {
		return "", fmt.Errorf("CLEAT_CACHE: %w", err)
	}
	return dir, nil
}
