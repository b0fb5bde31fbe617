package unixsock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestLiveSocketIsNotStolen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l := listenAt(t, Address{Path: path})
	testkit.WantError(t, "Listen", testkit.Err(Listen(t.Context(), Address{Path: path})), ErrLive, path)
	// The probe of the second starter is in the queue; drop it.
	probe := testkit.Value(l.Accept())(t)
	_ = probe.Close()
	if !answers(t, l, path) {
		t.Error("the first no longer answers")
	}
	checkAlone(t, path)
}

func TestSocketOfAnotherTypeIsLive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	c := testkit.Value(net.ListenPacket("unixgram", path))(t)
	defer func() { _ = c.Close() }()
	testkit.WantError(t, "Listen", testkit.Err(Listen(t.Context(), Address{Path: path})), ErrLive)
}

func TestSocketOfAKilledProcessIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	victim := exec.CommandContext(t.Context(), "/proc/self/exe")
	victim.Env = append(os.Environ(), victimSocket+"="+path)
	server := testkit.Start(t, victim)
	server.WaitFor(t, "serving")
	if _, err := Listen(t.Context(), Address{Path: path}); !errors.Is(err, ErrLive) || !strings.Contains(err.Error(), fmt.Sprintf("(process %d)", server.PID())) {
		t.Errorf("while it lives: %v", err)
	}
	server.Kill()
	if _, err := os.Lstat(path); err != nil {
		t.Fatalf("the killed process left no socket: %v", err)
	}
	if l := listenAt(t, Address{Path: path}); !answers(t, l, path) {
		t.Error("the new one does not answer")
	}
	checkAlone(t, path)
}

func TestLeftoverOfACrashIsRemoved(t *testing.T) {
	dir := t.TempDir()
	u := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, hidden), Net: "unix"}))(t)
	u.SetUnlinkOnClose(false)
	_ = u.Close()
	path := filepath.Join(dir, "s.sock")
	listenAt(t, Address{Path: path})
	checkAlone(t, path)
}

func TestCloseRemovesOnlyItsOwnInode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	first := listenAt(t, Address{Path: path})
	testkit.Must(t, os.Rename(path, path+".moved"))
	second := listenAt(t, Address{Path: path})
	testkit.Must(t, first.Close())
	if !answers(t, second, path) {
		t.Error("the socket of the second is gone")
	}
}

// A client that connects immediately is served, and finds the final mode, for
// any umask.
func TestSocketServesBeforeItShows(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	dir := t.TempDir()
	for round := range 200 {
		path := filepath.Join(dir, strconv.Itoa(round))
		seen := make(chan error, 1)
		go func() { seen <- connectWhenVisible(t.Context(), path) }()
		l := listenAt(t, Address{Path: path, Mode: 0o620})
		testkit.Must(t, <-seen)
		_ = l.Close()
	}
}

func connectWhenVisible(ctx context.Context, path string) error {
	for {
		info, err := os.Lstat(path)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			runtime.Gosched()
			continue
		}
		if info.Mode().Perm() != 0o620 {
			return fmt.Errorf("it shows with mode %v", info.Mode())
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

func TestOneOfManyStartersWins(t *testing.T) {
	for round := range 10 {
		path := filepath.Join(t.TempDir(), "s.sock")
		if round%2 == 1 { // over a dead socket
			u := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
			u.SetUnlinkOnClose(false)
			_ = u.Close()
		}
		var won atomic.Int32
		var starters sync.WaitGroup
		for range 8 {
			starters.Go(func() {
				l, err := Listen(t.Context(), Address{Path: path})
				switch {
				case err == nil:
					won.Add(1)
					t.Cleanup(func() { _ = l.Close() })
				case !errors.Is(err, ErrLive):
					t.Error(err)
				}
			})
		}
		starters.Wait()
		if won.Load() != 1 {
			t.Errorf("%d starters won", won.Load())
		}
		checkAlone(t, path)
	}
}

// Concurrent sockets in a shared directory do not interfere, and the directory
// is unchanged.
func TestManySocketsInSharedDirectory(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(t, os.Chmod(dir, 0o2710))
	before, was := mode(t, dir)
	const count = 16
	var starters sync.WaitGroup
	for i := range count {
		starters.Go(func() {
			path := filepath.Join(dir, strconv.Itoa(i)+"-reg.sock")
			for range 10 {
				l, err := Listen(t.Context(), Address{Path: path, SharedDir: true})
				if err != nil {
					t.Error(err)
					return
				}
				if seen, err := l.Look(); seen != Ours || err != nil {
					t.Errorf("%s is %s, %v", path, seen, err)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	starters.Wait()
	if left, err := os.ReadDir(dir); len(left) != 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
	if after, is := mode(t, dir); after != before || is.Uid != was.Uid || is.Gid != was.Gid {
		t.Errorf("the directory has mode %v, was %v", after, before)
	}
}

func TestListenHonoursItsContext(t *testing.T) {
	dir := t.TempDir()
	holder := testkit.Open(os.Open(dir))(t)
	testkit.Must(t, flock.Lock(t.Context(), holder))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	testkit.WantError(t, "Listen", testkit.Err(Listen(ctx, Address{Path: filepath.Join(dir, "s.sock")})), context.DeadlineExceeded)
}
