package programs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// newest is the minimum number of sets kept.
	newest = 2
	// idleLimit is the time since the last Build after which other sets are
	// removed: their programs can still be started before.
	idleLimit = 2 * time.Hour
	// hashLength is the length of a set's name.
	hashLength = 16
)

// hash returns the name of the set, derived from everything the programs are
// built from: another version gives another set.
func (b *builder) hash(ctx context.Context) (string, error) {
	h := sha256.New()
	tool, err := b.goTool(ctx, b.root, "", "env", "GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT")
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "%s\n%q\n", tool, buildFlags())
	for _, m := range b.modules {
		fmt.Fprintf(h, "%s %+v\n", m.name, m.sources)
		file := filepath.Join(b.root, m.modfile)
		for _, file := range []string{file, strings.TrimSuffix(file, ".mod") + ".sum"} {
			text, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(h, "%d\n%s", len(text), text)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:hashLength], nil
}

// used sets the time of a set to now.
func used(dir string) error {
	now := time.Now()
	return os.Chtimes(dir, now, now)
}

// clear removes left-overs of killed builds. Files that one of their compilers
// still writes are ignored, and removed by the next build.
func (b *builder) clear() error {
	entries, err := os.ReadDir(b.cache)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), making) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(b.cache, e.Name())); err != nil {
			b.logf("of a build that was killed there is left: %v", err)
		}
	}
	return nil
}

// prune removes old sets other than keep.
func (b *builder) prune(keep string, now time.Time) error {
	entries, err := os.ReadDir(b.cache)
	if err != nil {
		return err
	}
	var sets []os.FileInfo
	for _, e := range entries {
		if _, err := hex.DecodeString(e.Name()); err != nil || len(e.Name()) != hashLength || !e.IsDir() || e.Name() == keep {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		sets = append(sets, info)
	}
	slices.SortFunc(sets, func(x, y os.FileInfo) int { return y.ModTime().Compare(x.ModTime()) })
	var failed []error
	for i, s := range sets {
		if i < newest-1 || now.Sub(s.ModTime()) < idleLimit {
			continue
		}
		b.logf("removing the older programs of Kubernetes in %s", filepath.Join(b.cache, s.Name()))
		failed = append(failed, b.discard(s.Name()))
	}
	return errors.Join(failed...)
}

// discard removes a set. It renames the set to a hidden name first, so that an
// interruption leaves no partial set.
func (b *builder) discard(id string) error {
	hidden := filepath.Join(b.cache, making+id)
	if err := os.Rename(filepath.Join(b.cache, id), hidden); err != nil {
		return err
	}
	return os.RemoveAll(hidden)
}
