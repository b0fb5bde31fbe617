package disk

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

func TestPowerLossKeepsFlushedWrites(t *testing.T) {
	for survival, want := range map[Survival]string{SurviveNone: "abc..", SurviveAll: "aBcd."} {
		t.Run(survival.String(), func(t *testing.T) {
			d := open(t, Spec{Survival: survival})
			g := attach(t, d)
			for _, r := range []nbd.Request{
				write(0, 'a'), write(1, 'b'), write(4, 'e'), flush,
				write(1, 'x'), write(1, 'B'), fua(write(2, 'c')), write(3, 'd'),
				fua(nbd.Request{Command: nbd.Trim, Offset: 4 * blockSize, Length: blockSize}),
			} {
				g.do(r)
			}
			if got := g.first(5); got != "aBcd." {
				t.Fatalf("before the power loss the disk reads %s, want aBcd.", got)
			}
			if got := d.Stats().UnflushedBytes; got != 3*blockSize {
				t.Errorf("got %d unflushed bytes, want 3 blocks", got)
			}
			cyclePower(t, d)
			if got := attach(t, d).first(5); got != want {
				t.Errorf("after the power loss the disk reads %s, want %s", got, want)
			}
			if l := d.Stats().LastLoss; l.Writes != 3 || l.Blocks != 2 || l.Torn != 0 || l.Stale != 0 || (l.Lost == 2) != (survival == SurviveNone) {
				t.Errorf("got loss %+v, want 3 writes to 2 blocks", l)
			}
		})
	}
}

// A flush covers only the writes that were complete when it arrived.
func TestFlushCoversCompletedWritesOnly(t *testing.T) {
	d := open(t, Spec{Survival: SurviveNone})
	s := d.session
	do := func(r nbd.Request) {
		t.Helper()
		if s.Do(r).Error != nbd.OK {
			t.Fatalf("%v failed", r.Command)
		}
	}
	do(write(0, 'a'))
	do(write(1, 'b'))
	early := nbd.Request{Command: nbd.Flush, Mark: s.Mark()}
	do(write(1, 'c'))
	do(write(2, 'd'))
	do(early)
	if got := attach(t, d).first(3); got != "acd" {
		t.Errorf("the disk reads %s, want acd", got)
	}
	cyclePower(t, d)
	if got := attach(t, d).first(3); got != "ab." {
		t.Errorf("after the power loss the disk reads %s, want ab.: the flush must not cover a later write", got)
	}
}

func TestPoweredOffDiskDoesNotAnswer(t *testing.T) {
	d := open(t, Spec{Survival: SurviveAll})
	g := attach(t, d)
	g.do(write(0, 'a'))
	gone := d.Gone()
	testkit.Must(t, d.LosePower())
	<-gone
	g.send(write(0, 'b'))
	g.send(flush)
	if _, err := nbd.Dial(t.Context(), d.Socket()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("connect to a powered-off disk: got %v, want %v", err, fs.ErrNotExist)
	}
	if err := d.LosePowerAt(Trigger{N: 1}); err == nil {
		t.Error("a powered-off disk accepted a trigger")
	}
	before := d.Stats()
	if err := d.LosePower(); err != nil || d.Stats() != before {
		t.Errorf("second power loss: got %v, %v; want unchanged stats %v", err, d.Stats(), before)
	}
	late := d.session // a request that waited for the disk's lock during the power loss
	late.Do(write(0, 'c'))
	testkit.Must(t, d.PowerOn())
	late.Do(write(0, 'd'))
	if _, _, err := g.c.Receive(); err == nil {
		t.Error("the disk answered after the power loss")
	}
	after := attach(t, d)
	if got := after.first(1); got != "a" {
		t.Errorf("the disk reads %s, want a", got)
	}
	if err := d.PowerOn(); err != nil {
		t.Errorf("power on of a powered disk: %v", err)
	}
	if after.do(flush); after.first(1) != "a" {
		t.Error("power on of a powered disk lost data or clients")
	}
}

// Close keeps unflushed writes, and the disk can be opened again.
func TestCloseAndOpenAgain(t *testing.T) {
	spec := Spec{Path: filepath.Join(t.TempDir(), "disk"), Size: 1 << 20, Survival: SurviveNone}
	d := open(t, spec)
	attach(t, d).do(write(7, 'h'))
	if _, err := Open(spec); !errors.Is(err, flock.ErrHeld) {
		t.Errorf("open the same file twice: got %v, want %v", err, flock.ErrHeld)
	}
	for range 2 {
		testkit.Must(t, d.Close())
	}
	if err := d.PowerOn(); err == nil {
		t.Error("power on of a closed disk succeeded")
	}
	if _, err := os.Stat(filepath.Dir(d.Socket())); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket's directory still exists: %v", err)
	}
	if got := attach(t, open(t, spec)).first(8); got != ".......h" {
		t.Errorf("after reopening, the disk reads %s", got)
	}
}

func TestOpenRejectsInvalidSpecs(t *testing.T) {
	dir := t.TempDir()
	grown := filepath.Join(dir, "grown")
	testkit.Must(t, os.WriteFile(grown, make([]byte, 8192), 0o600))
	for name, test := range map[string]struct {
		spec Spec
		want string
	}{
		"odd block size":     {Spec{Size: 1 << 20, Block: 1024}, "size 1024 is not 512 or 4096"},
		"no size":            {Spec{}, "size 0 is not"},
		"half a block":       {Spec{Size: 6144}, "multiple of the physical block size 4096"},
		"a negative cache":   {Spec{Size: 4096, Cache: -1}, "cache size -1"},
		"another size":       {Spec{Path: grown, Size: 4096}, "has 8192 bytes, want 4096"},
		"a directory":        {Spec{Path: dir, Size: 4096}, "is a directory"},
		"a missing parent":   {Spec{Path: filepath.Join(dir, "no/disk"), Size: 4096}, "no such file"},
		"too long a TMPDIR":  {Spec{Size: 4096}, "invalid argument"},
		"a device, not file": {Spec{Path: "/dev/null", Size: 4096}, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.spec.Path == "" {
				test.spec.Path = filepath.Join(t.TempDir(), "disk")
			}
			if strings.Contains(name, "TMPDIR") {
				long := filepath.Join(t.TempDir(), strings.Repeat("x", 120))
				testkit.Must(t, os.Mkdir(long, 0o700))
				t.Setenv("TMPDIR", long)
			}
			d, err := Open(test.spec)
			if err == nil {
				d.Close()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

// Trim and zeroing free space in the backing file.
func TestDiscardFreesSpace(t *testing.T) {
	for _, c := range []nbd.Command{nbd.Trim, nbd.WriteZeroes} {
		d := open(t, Spec{})
		g := attach(t, d)
		g.do(nbd.Request{Command: nbd.Write, Data: bytes.Repeat([]byte{1}, 1<<20), FUA: true})
		full := allocated(t, d)
		g.do(nbd.Request{Command: c, Offset: 512, Length: 1<<20 - 512})
		if got := allocated(t, d); got != full {
			t.Errorf("%v reached the medium before the flush: got %d allocated bytes, want %d", c, got, full)
		}
		g.do(flush)
		if got := allocated(t, d); full < 1<<20 || got > 1<<20/8 {
			t.Errorf("after %v and a flush %d bytes are allocated, before it %d", c, got, full)
		}
		want := append(bytes.Repeat([]byte{1}, 512), make([]byte, 1<<20-512)...)
		if got := g.do(nbd.Request{Command: nbd.Read, Length: 1 << 20}); !bytes.Equal(got, want) {
			t.Errorf("%v of all but the first sector: unexpected contents", c)
		}
	}
}

func allocated(t *testing.T, d *Disk) int64 {
	t.Helper()
	var st unix.Stat_t
	testkit.Must(t, unix.Stat(d.spec.Path, &st))
	return st.Blocks * 512
}

func TestArgs(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	odd := filepath.Join(os.Getenv("TMPDIR"), "a,b")
	testkit.Must(t, os.Mkdir(odd, 0o700))
	t.Setenv("TMPDIR", odd)
	d := open(t, Spec{Block: 512})
	want := []string{
		"-blockdev", "driver=nbd,node-name=pool,server.type=unix,server.path=" + strings.ReplaceAll(d.Socket(), "a,b", "a,,b") +
			",cache.direct=off,cache.no-flush=off,discard=unmap,detect-zeroes=off",
		"-device", "virtio-blk-pci,drive=pool,id=pool-device,serial=pool,write-cache=on,logical_block_size=512,physical_block_size=512,rerror=report,werror=report",
	}
	if diff := cmp.Diff(want, d.Args("pool")); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	if conn, err := net.Dial("unix", d.Socket()); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}
}
