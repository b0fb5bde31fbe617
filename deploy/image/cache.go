package image

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"

	"github.com/cleatproject/cleat/internal/linux/flock"
)

// DefaultCache returns the directory for downloaded packages: image below
// CLEAT_CACHE, else below cleat in the user's cache directory.
func DefaultCache() (string, error) {
	if dir := os.Getenv("CLEAT_CACHE"); dir != "" {
		return filepath.Abs(filepath.Join(dir, "image"))
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory for the image's packages (set CLEAT_CACHE): %w", err)
	}
	return filepath.Join(dir, "cleat", "image"), nil
}

// fetch returns a directory with the packages' archives, and their list. They
// are downloaded once; the directory is created atomically. An empty release is
// the machine's; of another one the packages come with everything that they
// depend on.
func fetch(ctx context.Context, cache, architecture, release string, names []string, log func(format string, args ...any)) (string, []archive, error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", nil, fmt.Errorf("package cache: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return "", nil, fmt.Errorf("package cache: %w", err)
	}
	defer lock.Close()
	if err := flock.Lock(ctx, lock); err != nil {
		return "", nil, fmt.Errorf("package cache: %w", err)
	}
	a := apt{dir: filepath.Join(cache, "apt-"+release+architecture), architecture: architecture, release: release, log: log}
	if err := a.prepare(ctx); err != nil {
		return "", nil, err
	}
	if release != "" {
		if names, err = a.closure(ctx, names); err != nil {
			return "", nil, a.renew(err)
		}
	}
	archives, err := a.archives(ctx, names)
	if err != nil {
		return "", nil, a.renew(err)
	}
	dir := filepath.Join(cache, key(archives))
	if _, err := os.Stat(dir); err == nil {
		return dir, archives, nil
	}
	log("downloading %d Debian packages", len(archives))
	if err := place(dir, func(fresh string) error { return a.download(ctx, archives, fresh) }); err != nil {
		return "", nil, a.renew(err)
	}
	return dir, archives, prune(cache, filepath.Base(dir))
}

// Unpacked returns a directory with all files of packages, and of everything
// that they depend on, of the Debian release that the variant's packages are of.
func Unpacked(ctx context.Context, v Variant, to io.Writer, names ...string) (string, error) {
	of, err := v.contents()
	if err != nil {
		return "", err
	}
	cache, err := DefaultCache()
	if err != nil {
		return "", err
	}
	// A cache of its own: the images' one keeps two sets.
	dir, archives, err := fetch(ctx, filepath.Join(cache, "unpacked"), runtime.GOARCH, of.release, names, logger(to))
	if err != nil {
		return "", err
	}
	root := filepath.Join(dir, "root")
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	logger(to)("unpacking %d Debian packages", len(archives))
	return root, place(root, func(fresh string) error {
		for _, a := range archives {
			if _, err := output(exec.CommandContext(ctx, "dpkg-deb", "--extract", filepath.Join(dir, a.File), fresh)); err != nil {
				return err
			}
		}
		return nil
	})
}

// key identifies a set of archives.
func key(archives []archive) string {
	sum := sha256.New()
	for _, a := range archives {
		fmt.Fprintf(sum, "%s %s\n", a.File, a.SHA256)
	}
	return hex.EncodeToString(sum.Sum(nil))[:32]
}

// place fills a directory under a hidden name and renames it.
func place(dir string, fill func(fresh string) error) error {
	fresh, err := os.MkdirTemp(filepath.Dir(dir), ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(fresh)
	if err := fill(fresh); err != nil {
		return err
	}
	return os.Rename(fresh, dir)
}

var keyName = regexp.MustCompile(`^[0-9a-f]{32}$`)

// prune keeps the used set and the newest of the others, and removes left-over
// directories of killed runs.
func prune(cache, used string) error {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return err
	}
	var sets []fs.FileInfo
	for _, e := range entries {
		if ok, err := filepath.Match(".new-*", e.Name()); err == nil && ok {
			if err := os.RemoveAll(filepath.Join(cache, e.Name())); err != nil {
				return err
			}
		}
		if info, err := e.Info(); err == nil && e.IsDir() && keyName.MatchString(e.Name()) && e.Name() != used {
			sets = append(sets, info)
		}
	}
	slices.SortFunc(sets, func(a, b fs.FileInfo) int { return cmp.Compare(b.ModTime().UnixNano(), a.ModTime().UnixNano()) })
	for i, set := range sets {
		if i > 0 {
			if err := os.RemoveAll(filepath.Join(cache, set.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
