package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/test/tree"
	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/wire"
)

// buildAgent builds the agent from the source tree of the running test, so that
// both use the same protocol version, and calls use with its path. The binary
// is in the cache, so an unchanged agent is not rebuilt.
func buildAgent(ctx context.Context, store *image.Store, use func(path string) error) error {
	root, err := tree.Root()
	if err != nil {
		return err
	}
	path, err := store.Agent(root)
	if err != nil {
		return err
	}
	lock, err := openLock(path + ".lock")
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := flock.Lock(ctx, lock); err != nil {
		return fmt.Errorf("lock the guest agent's binary: %w", err)
	}
	if err := goTool(ctx, root, "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./test/vm/agent"); err != nil {
		return err
	}
	return use(path)
}

// goTool runs the go command without cgo.
func goTool(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// overlay returns the files that this guest has in addition to its image.
func overlay(s Spec, agent string, config wire.Config) (image.Tree, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	tree := image.Tree{
		"init":                 {Host: agent, Mode: 0o755},
		wire.ConfigPath[1:]:    {Data: text, Mode: 0o600},
		"usr/share/guest-name": {Data: []byte(s.Name + "\n"), Mode: 0o644},
	}
	add := func(inGuest, onHost string) error {
		info, err := os.Stat(onHost)
		if err != nil {
			return fmt.Errorf("file for the guest: %w", err)
		}
		tree[image.Path(inGuest)] = image.Entry{Host: onHost, Mode: info.Mode().Perm()}
		return nil
	}
	for _, p := range s.Programs {
		if err := add("/usr/bin/"+filepath.Base(p), p); err != nil {
			return nil, err
		}
	}
	for inGuest, onHost := range s.Files {
		if err := add(inGuest, onHost); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

// writeInitrd concatenates the image's archive and the guest's overlay.
func writeInitrd(path, base string, own image.Tree) (err error) {
	from, err := os.Open(base)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	w := bufio.NewWriterSize(to, 1<<20)
	if err := image.WriteArchive(w, own); err != nil {
		return err
	}
	return w.Flush()
}
