package plugins

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

// paths returns all sockets below a directory.
func (c *crowd) paths(dir string) []string {
	var all []string
	for path := range c.live {
		all = append(all, path)
	}
	for path := range c.silent {
		all = append(all, path)
	}
	for path := range c.dead {
		all = append(all, path)
	}
	return slices.DeleteFunc(all, func(path string) bool { return !strings.HasPrefix(path, dir+"/") })
}

// moveDirectory renames a directory with its contents.
func (c *crowd) moveDirectory() {
	from, to := c.directory(), filepath.Join(c.dir, fmt.Sprintf("d%d", 8+c.IntN(8)))
	if _, err := os.Lstat(to); err == nil {
		from, to = to, from
		c.removeAll(to)
	}
	if os.Rename(from, to) != nil {
		return // the directory does not exist now
	}
	for _, path := range c.paths(from) {
		c.moved(path, to+strings.TrimPrefix(path, from))
	}
}

func (c *crowd) directory() string { return filepath.Join(c.dir, fmt.Sprintf("d%d", c.IntN(8))) }

func (c *crowd) removeDirectory() { c.removeAll(c.directory()) }

// removeAll is rm -r, while other files are created.
func (c *crowd) removeAll(dir string) {
	paths := c.paths(dir)
	for range 100 {
		if os.RemoveAll(dir) == nil {
			break
		}
	}
	for _, path := range paths {
		c.forget(path)
	}
}

// clear removes everything.
func (c *crowd) clear() {
	for _, path := range c.paths(c.dir) {
		testkit.Must(c, os.Remove(path))
		c.forget(path)
	}
}

// flood creates, writes and removes other files beside the sockets until ctx
// ends: several thousand events a second.
func (c *crowd) flood(ctx context.Context, who int) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		dir := c.dir
		if n%3 > 0 {
			dir = filepath.Join(dir, fmt.Sprintf("d%d", n%8)) // might be removed
		}
		for i := range 5 {
			path := filepath.Join(dir, fmt.Sprintf("other-%d-%d", who, i))
			_ = os.WriteFile(path, []byte("x"), 0o600)
			_ = os.Rename(path, path+".sock")
			_ = os.Remove(path + ".sock")
		}
	}
}
