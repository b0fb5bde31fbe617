package discovery

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

// kinds are the files in the directory, and the sockets that are found for
// them.
var kinds = map[string]struct {
	put  func(t *testing.T, root string)
	want []string
}{
	"any name": {func(t *testing.T, root string) {
		socket(t, root+"/a.sock", root+"/b", root+"/with space", root+"/"+strings.Repeat("x", 255), root+"/new\nline", root+"/ü\xff")
	}, []string{"a.sock", "b", "with space", strings.Repeat("x", 255), "new\nline", "ü\xff"}},
	"any depth": {func(t *testing.T, root string) {
		mkdir(t, root+"/sub", root+"/a/b/c")
		socket(t, root+"/sub/s", root+"/a/b/c/s", root+"/a/s")
	}, []string{"a/b/c/s", "a/s", "sub/s"}},
	"hidden": {func(t *testing.T, root string) {
		mkdir(t, root+"/.hidden/sub", root+"/sub/.hidden", root+"/.x")
		socket(t, root+"/.s", root+"/.hidden/s", root+"/.hidden/sub/s", root+"/sub/.hidden/s", root+"/sub/..s", root+"/.x/.s")
	}, nil},
	"link to a socket": {func(t *testing.T, root string) {
		other := t.TempDir()
		socket(t, other+"/s", root+"/.hidden.sock")
		testkit.Must(t, os.Symlink(other+"/s", root+"/link"), os.Symlink(".hidden.sock", root+"/near"), os.Symlink("link", root+"/twice"))
	}, []string{"link", "near", "twice"}},
	"links to other things": {func(t *testing.T, root string) {
		other := t.TempDir()
		socket(t, other+"/s")
		testkit.Must(t, os.Symlink(other, root+"/dir"), os.Symlink("nowhere", root+"/dangling"), os.Symlink("round", root+"/round"),
			os.Symlink("/dev/null", root+"/device"))
	}, nil},
	"hard link": {func(t *testing.T, root string) {
		other := filepath.Join(filepath.Dir(root), "other")
		socket(t, other)
		testkit.Must(t, os.Link(other, root+"/hard"))
	}, []string{"hard"}},
	"moved in": {func(t *testing.T, root string) {
		other := filepath.Join(filepath.Dir(root), "other")
		mkdir(t, other+"/sub")
		socket(t, other+"/sub/s", other+"/s")
		testkit.Must(t, os.Rename(other+"/s", root+"/s"), os.Rename(other, root+"/dir"))
	}, []string{"dir/sub/s", "s"}},
	"mode 0": {func(t *testing.T, root string) {
		socket(t, root+"/s")
		testkit.Must(t, os.Chmod(root+"/s", 0))
	}, []string{"s"}},
	"no sockets": {func(t *testing.T, root string) {
		testkit.Must(t, os.WriteFile(root+"/file", nil, 0o600), unix.Mkfifo(root+"/fifo", 0o600), unix.Mknod(root+"/null", unix.S_IFCHR, 1<<8|3))
	}, nil},
}

func TestFileKinds(t *testing.T) {
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Run("at start", func(t *testing.T) {
				r := newRig(t, func(root string) { c.put(t, root) })
				r.wait(c.want...)
				r.reported()
				r.wait(c.want...)
			})
			t.Run("while running", func(t *testing.T) {
				r := newRig(t, nil)
				c.put(t, r.dir)
				r.reported()
				r.wait(c.want...)
			})
			t.Run("in a new directory", func(t *testing.T) {
				r := newRig(t, nil)
				mkdir(t, filepath.Dir(r.dir)+"/made")
				c.put(t, filepath.Dir(r.dir)+"/made")
				testkit.Must(t, os.Rename(filepath.Dir(r.dir)+"/made", r.dir+"/made"))
				var want []string
				for _, w := range c.want {
					want = append(want, "made/"+w)
				}
				r.reported()
				r.wait(want...)
			})
		})
	}
}

// Links to directories that are created after the start are not followed
// either.
func TestLinkedDirectoryIsNotFollowedLater(t *testing.T) {
	other := t.TempDir()
	r := newRig(t, func(root string) { testkit.Must(t, os.Symlink(other, root+"/dir")) })
	socket(t, other+"/s")
	testkit.Must(t, os.Symlink(other, r.dir+"/later"))
	socket(t, other+"/later")
	r.expect("")
}

func TestRootIsALink(t *testing.T) {
	real := t.TempDir()
	socket(t, real+"/before")
	link := filepath.Join(t.TempDir(), "link")
	testkit.Must(t, os.Symlink(real, link))
	r := makeRig(t, link)
	testkit.Must(t, r.Start())
	r.run()
	r.wait("before")
	socket(t, real+"/after")
	r.wait("after", "before")
}

func TestChangeSequences(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, root string)
		do      func(t *testing.T, root string)
		want    []string
	}{
		"renamed, then removed": {
			func(t *testing.T, root string) { socket(t, root+"/a") },
			func(t *testing.T, root string) {
				testkit.Must(t, os.Rename(root+"/a", root+"/b"), os.Remove(root+"/b"))
			},
			[]string{"-a", "-a +b -b"}, // depends on when b is read
		},
		"renamed over another": {
			func(t *testing.T, root string) { socket(t, root+"/a", root+"/b") },
			func(t *testing.T, root string) { testkit.Must(t, os.Rename(root+"/b", root+"/a")) },
			[]string{"-b -a +a"},
		},
		"touched": {
			func(t *testing.T, root string) { socket(t, root+"/a") },
			func(t *testing.T, root string) {
				testkit.Must(t, os.Chmod(root+"/a", 0o777), os.Chmod(root, 0o700), os.Chown(root+"/a", 1, 1), unix.Utimes(root+"/a", make([]unix.Timeval, 2)))
			},
			[]string{""},
		},
		"hidden, then shown": {
			func(t *testing.T, root string) { socket(t, root+"/.a") },
			func(t *testing.T, root string) { testkit.Must(t, os.Rename(root+"/.a", root+"/a")) },
			[]string{"+a"},
		},
		"shown, then hidden": {
			func(t *testing.T, root string) { socket(t, root+"/a") },
			func(t *testing.T, root string) { testkit.Must(t, os.Rename(root+"/a", root+"/.a")) },
			[]string{"-a"},
		},
		"replaced by a file": {
			func(t *testing.T, root string) {
				socket(t, root+"/a")
				testkit.Must(t, os.WriteFile(root+"/f", nil, 0o600))
			},
			func(t *testing.T, root string) { testkit.Must(t, os.Rename(root+"/f", root+"/a")) },
			[]string{"-a"},
		},
		"exchanged with a directory": {
			func(t *testing.T, root string) { socket(t, root+"/a"); mkdir(t, root+"/d"); socket(t, root+"/d/s") },
			func(t *testing.T, root string) {
				testkit.Must(t, unix.Renameat2(unix.AT_FDCWD, root+"/a", unix.AT_FDCWD, root+"/d", unix.RENAME_EXCHANGE))
			},
			nil,
		},
		"exchanged with another": {
			func(t *testing.T, root string) { socket(t, root+"/a", root+"/b") },
			func(t *testing.T, root string) {
				testkit.Must(t, unix.Renameat2(unix.AT_FDCWD, root+"/a", unix.AT_FDCWD, root+"/b", unix.RENAME_EXCHANGE))
			},
			nil,
		},
		"directory renamed": {
			func(t *testing.T, root string) { mkdir(t, root+"/d/e"); socket(t, root+"/d/e/s") },
			func(t *testing.T, root string) { testkit.Must(t, os.Rename(root+"/d", root+"/x")) },
			[]string{"-d/e/s +x/e/s"},
		},
		"directory moved out": {
			func(t *testing.T, root string) { mkdir(t, root+"/d/e"); socket(t, root+"/d/e/s") },
			func(t *testing.T, root string) {
				out := filepath.Dir(root) + "/out"
				testkit.Must(t, os.Rename(root+"/d", out))
				socket(t, out+"/e/more")
			},
			[]string{"-d/e/s"},
		},
		"directory removed": {
			func(t *testing.T, root string) { mkdir(t, root+"/d/e"); socket(t, root+"/d/e/s", root+"/d/s") },
			func(t *testing.T, root string) { testkit.Must(t, os.RemoveAll(root+"/d")) },
			nil,
		},
		"directory moved into a new one": {
			func(t *testing.T, root string) { mkdir(t, root+"/a"); socket(t, root+"/a/s") },
			func(t *testing.T, root string) {
				mkdir(t, root+"/d")
				testkit.Must(t, os.Rename(root+"/a", root+"/d/a"))
			},
			nil,
		},
		"link to another socket": {
			func(t *testing.T, root string) {
				socket(t, root+"/.a", root+"/.b")
				testkit.Must(t, os.Symlink(".a", root+"/current"))
			},
			func(t *testing.T, root string) {
				testkit.Must(t, os.Symlink(".b", root+"/.new"), os.Rename(root+"/.new", root+"/current"))
			},
			[]string{"-current +current"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(root string) { c.prepare(t, root) })
			r.reported()
			c.do(t, r.dir)
			got := strings.Join(r.reported(), " ")
			if c.want != nil && !slices.Contains(c.want, got) {
				t.Errorf("got %q, want one of %q", got, c.want)
			}
			r.wait(walk(t, r.dir)...)
		})
	}
}

// Test file systems reuse inode numbers at once, so this also tests events: a
// socket that is created again is a new one.
func TestRecreatedAtOnce(t *testing.T) {
	r := newRig(t, func(root string) { socket(t, root+"/a") })
	var want []string
	for range 50 {
		testkit.Must(t, os.Remove(r.dir+"/a"))
		socket(t, r.dir+"/a")
		want = append(want, r.reported()...)
	}
	if len(want) != 101 {
		t.Errorf("50 times re-made, %d changes: %q", len(want), want)
	}
}

func TestDirectoryAndSocketTogether(t *testing.T) {
	r := newRig(t, nil)
	var all []string
	for i := range 40 {
		d := fmt.Sprintf("d%d/e", i)
		mkdir(t, r.dir+"/"+d)
		socket(t, r.dir+"/"+d+"/s")
		all = append(all, "+"+d+"/s")
	}
	r.expect(all...)
}

// walk returns the expected sockets by a simple traversal.
func walk(t testing.TB, root string) (all []string) {
	t.Helper()
	entries := testkit.Value(os.ReadDir(root))(t)
	for _, e := range entries {
		path := filepath.Join(root, e.Name())
		if hidden(e.Name()) {
			continue
		}
		if e.IsDir() {
			for _, below := range walk(t, path) {
				all = append(all, e.Name()+"/"+below)
			}
		} else if info, err := os.Stat(path); err == nil && info.Mode().Type() == os.ModeSocket {
			all = append(all, e.Name())
		}
	}
	return all
}
