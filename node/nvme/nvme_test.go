package nvme

import (
	"context"
	"crypto/rand"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kmsg"
	kernel "github.com/cleatproject/cleat/internal/linux/nvme"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
	"github.com/cleatproject/cleat/volume/enginetest"
)

const (
	red  = "nqn.2024-01.example:red"
	self = "nqn.2024-01.example:host"
)

var first, second = netip.MustParseAddrPort("192.0.2.1:4420"), netip.MustParseAddrPort("[2001:db8::1]:4420")

func TestChoose(t *testing.T) {
	one := kernel.Namespace{NSID: 1, UUID: "u1", NGUID: "a1", WWID: "uuid.u1"}
	two := kernel.Namespace{NSID: 2, UUID: "u2", WWID: "uuid.u2"}
	both := []kernel.Namespace{one, two}
	for name, c := range map[string]struct {
		locator access.NVMe
		disks   []kernel.Namespace
		want    kernel.Namespace
		kind    errs.Kind
		word    string
	}{
		"by uuid":               {access.NVMe{UUID: "u2"}, both, two, "", ""},
		"by nguid":              {access.NVMe{NGUID: "a1"}, both, one, "", ""},
		"by nsid":               {access.NVMe{NSID: 2}, both, two, "", ""},
		"the only one":          {access.NVMe{}, both[:1], one, "", ""},
		"one of several":        {access.NVMe{}, both, kernel.Namespace{}, errs.Precondition, "u2"},
		"another uuid":          {access.NVMe{UUID: "u3"}, both, kernel.Namespace{}, errs.NotFound, "u1"},
		"nsid of another":       {access.NVMe{UUID: "u1", NSID: 2}, both, kernel.Namespace{}, errs.NotFound, "nsId 2"},
		"nothing":               {access.NVMe{UUID: "u1"}, nil, kernel.Namespace{}, errs.NotFound, "no namespace"},
		"two disks of one uuid": {access.NVMe{UUID: "u1"}, []kernel.Namespace{one, one}, kernel.Namespace{}, errs.Precondition, "several disks"},
	} {
		got, err := choose(c.locator, c.disks)
		if got != c.want || (err == nil) != (c.kind == "") || err != nil && (errs.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.word)) {
			t.Errorf("%s: %+v, %v; want %+v, kind %q with %q", name, got, err, c.want, c.kind, c.word)
		}
	}
}

// The messages are those of Linux 6.1 and 6.12.
func TestInterrupted(t *testing.T) {
	messages := []string{
		`nvme nvme0: starting error recovery`, // of a controller whose subsystem is not known
		`nvme nvme0: new ctrl: NQN "` + red + `", addr 192.0.2.1:4420, hostnqn: ` + self,
		`nvme nvme1: Reconnecting in 2 seconds...`,
		`nvme0n1: I/O Cmd(0x8) @ LBA 4080, 16 blocks, I/O Error (sct 0x0 / sc 0x1) MORE DNR`,
		`nvme nvme0: creating 2 I/O queues.`, // a reset, as it is connected
		`nvme nvme0: starting error recovery`,
		`nvme nvme0: new ctrl: NQN "nqn.2024-01.example:blue", addr 192.0.2.1:4420`,
		`nvme nvme0: Removing ctrl: NQN "nqn.2024-01.example:blue"`,
		`EXT4-fs (nvme0n1): starting error recovery`,
		`nvme nvme0: creating 2 I/O queues.`, // the connect of a new one
		`nvme nvme0: mapped 2/0/0 default/read/poll queues.`,
		`nvme nvme2: creating 2 I/O queues.`,
	}
	var records []kmsg.Record
	for i, text := range messages {
		records = append(records, kmsg.Record{Seq: uint64(100 + i), Text: text})
	}
	names := map[string]string{"nvme1": "nqn.2024-01.example:green", "nvme2": "nqn.2024-01.example:grey"} // nvme2 connects
	got := interrupted(records, names, map[string]bool{"nvme1": true, "nvme2": false})
	want := []struct {
		seq uint64
		nqn string
	}{{102, "nqn.2024-01.example:green"}, {104, red}, {105, red}, {107, "nqn.2024-01.example:blue"}}
	if len(got) != len(want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	for i, w := range want {
		if got[i].seq != w.seq || got[i].nqn != w.nqn {
			t.Errorf("got %+v, want %+v", got[i], w)
		}
	}
}

func TestUncertainty(t *testing.T) {
	r := record{NQN: red, LogSeq: 100, Device: node.Device{Path: "/dev/nvme0n1"}}
	broke := func(seq uint64, nqn string) []interruption { return []interruption{{seq, nqn, "it broke"}} }
	for name, c := range map[string]struct {
		record      record
		found       []interruption
		first, last uint64
		want        string
	}{
		"nothing":                     {r, nil, 50, 90, ""},
		"after the disk was found":    {r, broke(101, red), 50, 90, "it broke"},
		"before":                      {r, broke(100, red), 50, 90, ""},
		"another subsystem":           {r, broke(101, "nqn.2024-01.example:blue"), 50, 90, ""},
		"messages were overwritten":   {r, nil, 151, 149, "1 messages"},
		"they were older":             {r, nil, 101, 0, ""},
		"they were read before":       {r, nil, 150, 149, ""},
		"the disk has not been found": {record{NQN: red}, broke(101, red), 200, 0, ""},
	} {
		got := uncertainty(c.record, c.found, c.first, c.last)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestPaths(t *testing.T) {
	l := access.NVMe{Transport: "tcp", NQN: red, Paths: []netip.AddrPort{first, second}}
	r := record{NQN: red, HostNQN: self, Locator: access.Encode(l), Device: node.Device{Path: "/dev/nvme0n1"}}
	live := kernel.Controller{Name: "nvme0", NQN: red, HostNQN: self, Address: first, State: kernel.StateLive}
	foreign := live
	foreign.HostNQN, foreign.Address = "nqn.2024-01.example:other", second
	missing := path{red, self, second}
	if got := missingPaths(r, l, []kernel.Controller{live, foreign}); len(got) != 1 || got[0] != missing {
		t.Errorf("missing are %v, want %v", got, missing)
	}
	if got := missingPaths(r, l, []kernel.Controller{foreign}); len(got) != 0 {
		t.Errorf("the disk is gone, and paths are added: %v", got)
	}
	down := live
	down.State = "connecting"
	for name, c := range map[string]struct {
		controllers []kernel.Controller
		reasons     string
	}{
		"one of two":     {[]kernel.Controller{live}, volume.ReasonPathDown},
		"one connecting": {[]kernel.Controller{live, {Name: "nvme1", Address: second, State: "connecting"}}, volume.ReasonPathDown},
		"both":           {[]kernel.Controller{live, {Name: "nvme1", Address: second, State: kernel.StateLive}}, ""},
		"none":           {[]kernel.Controller{down}, ""}, // Inspect reports the volume as unreachable
	} {
		var reasons []string
		for _, condition := range conditions(r, attached{controllers: c.controllers, multipath: true}) {
			reasons = append(reasons, condition.Reason)
			enginetest.CheckMessage(t, condition, second.String())
		}
		if got := strings.Join(reasons, " "); got != c.reasons {
			t.Errorf("%s: conditions %q, want %q", name, got, c.reasons)
		}
	}
	r.Uncertain = "it broke"
	for cache, want := range map[bool]int{true: 1, false: 0} {
		at := attached{disk: kernel.Namespace{WriteBack: cache}, controllers: []kernel.Controller{live, {Address: second, State: kernel.StateLive}}, multipath: true}
		got := conditions(r, at)
		if len(got) != want {
			t.Errorf("write cache %t: %+v, want %d conditions", cache, got, want)
		}
		for _, condition := range got {
			enginetest.CheckMessage(t, condition, "it broke")
		}
		at.multipath, at.controllers = false, at.controllers[:1]
		if got := conditions(r, at); len(got) != 0 {
			t.Errorf("without multipath: %+v", got)
		}
	}
}

func TestRecords(t *testing.T) {
	s := records{dir: filepath.Join(t.TempDir(), "nvme"), boot: "b"}
	l := access.NVMe{Transport: "tcp", NQN: red, NSID: 1, Paths: []netip.AddrPort{first}}
	other := l
	other.NSID = 2
	begin := func(l access.NVMe) record {
		t.Helper()
		r, isNew, err := s.begin(node.Target{Locator: l, Volume: "v"}, l, host{nqn: self}, "")
		testkit.Must(t, err)
		if !isNew {
			t.Errorf("%+v has a record", l)
		}
		return r
	}
	a := begin(l)
	if shared := testkit.Value(s.isShared(a))(t); shared {
		t.Error("one volume shares its connections")
	}
	b := begin(other)
	if shared := testkit.Value(s.isShared(a))(t); !shared {
		t.Error("two volumes do not share their connections")
	}
	moved := l
	moved.Paths = []netip.AddrPort{second}
	r, isNew, err := s.begin(node.Target{Locator: moved, Volume: "v"}, moved, host{nqn: self}, "")
	if err != nil || isNew || r.Locator["targetAddr"] != second.Addr().String() {
		t.Errorf("with other paths: %+v, new: %t, %v", r, isNew, err)
	}
	testkit.Must(t, s.putPosition(7), s.remove(b), s.remove(b))
	if seq := testkit.Value(s.position())(t); seq != 7 {
		t.Errorf("position %d, want 7", seq)
	}
	after := records{dir: s.dir, boot: "next"}
	if seq := testkit.Value(after.position())(t); seq != 0 {
		t.Errorf("after a reboot the position is %d", seq)
	}
	if all := testkit.Value(after.all())(t); len(all) != 0 {
		t.Errorf("after a reboot: %+v", all)
	}
	if all := testkit.Value(s.all())(t); len(all) != 0 {
		t.Errorf("a record of an earlier boot stays: %+v", all)
	}
	testkit.Must(t, os.WriteFile(filepath.Join(s.dir, "x.json"), []byte("{"), 0o600))
	if _, err := s.all(); err == nil || !strings.Contains(err.Error(), "x.json") {
		t.Errorf("a damaged record: %v", err)
	}
}

// An interruption that is found while the volume is detached does not bring its
// record back.
func TestInterruptionOfADetachedVolume(t *testing.T) {
	a := testkit.Value(New(Config{Dir: t.TempDir(), HostNQN: self, Boot: "b"}))(t)
	l := access.NVMe{Transport: "tcp", NQN: red, NSID: 1, Paths: []netip.AddrPort{first}}
	r, _, err := a.records.begin(node.Target{Locator: l}, l, host{nqn: self}, "")
	testkit.Must(t, err)
	testkit.Must(t, a.setUncertain(t.Context(), finding{r, "it broke"}))
	if all := testkit.Value(a.records.all())(t); len(all) != 1 || !strings.Contains(all[0].Uncertain, "it broke") {
		t.Errorf("records: %+v, want the interruption", all)
	}
	testkit.Must(t, a.records.remove(r), a.setUncertain(t.Context(), finding{r, "it broke"}))
	if all := testkit.Value(a.records.all())(t); len(all) != 0 {
		t.Errorf("after the detach: %+v", all)
	}
	testkit.Must(t, a.Close(testkit.Context(t)))
}

// A caller that waits for another connection learns which target holds it up.
func TestConnectsOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &connects{slot: make(chan struct{}, 1)}
		silent := make(chan struct{})
		go q.run(t.Context(), first, func() error { <-silent; return nil })
		synctest.Wait()
		time.Sleep(time.Second)
		err := q.run(t.Context(), second, func() error { t.Error("connected meanwhile"); return nil })
		if errs.KindOf(err) != errs.Unavailable || !strings.Contains(err.Error(), "that to 192.0.2.1:4420 has taken 31s") {
			t.Errorf("got %v", err)
		}
		close(silent)
		synctest.Wait()
		testkit.Must(t, q.run(t.Context(), second, func() error { return nil }))
	})
}

func TestKeys(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good": "DHHC-1:00:hush:\n", "plain": "hush words", "empty": "\n",
		"tls": "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:\n",
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	testkit.Must(t, os.WriteFile(filepath.Join(filepath.Dir(dir), "outside"), []byte("DHHC-1:00:hush:"), 0o600))
	a := &Attacher{config: Config{KeyDir: dir, HostNQN: self}}
	l := access.NVMe{Transport: "tcp", NQN: red, DHChapKey: "good"}
	c, err := a.connection(l, host{self, access.HostID(self)}, first)
	if err != nil || c.Key != "DHHC-1:00:hush:" || c.Loss != -1 || c.Delay != 2 || c.FastFail != 60 {
		t.Errorf("connection %+v, %v", c, err)
	}
	if c.PSK != nil {
		t.Error("a volume without tlsKey is connected with TLS")
	}
	l.TLSKey = "tls"
	if c, err := a.connection(l, host{}, first); err != nil || c.PSK == nil {
		t.Errorf("TLS: %+v, %v", c.PSK, err)
	}
	for _, name := range []string{"plain", "good", "empty", "absent", "../outside"} {
		if _, err := a.psk(name); errs.KindOf(err) != errs.Precondition || strings.Contains(err.Error(), "hush") {
			t.Errorf("TLS key %s: %v, want a precondition without the key", name, err)
		}
	}
	for _, name := range []string{"plain", "tls", "empty", "absent", "../outside"} {
		if _, err := a.authKey(name); errs.KindOf(err) != errs.Precondition || strings.Contains(err.Error(), "hush") {
			t.Errorf("key %s: %v, want a precondition without the key", name, err)
		}
	}
	if _, err := (&Attacher{}).key("good"); errs.KindOf(err) != errs.Precondition || !strings.Contains(err.Error(), "--nvme-key-dir") {
		t.Errorf("without a directory: %v", err)
	}
}

// A volume with a key does not use connections without one.
func TestConnectedWithoutAKey(t *testing.T) {
	k := newFakeKernel(t)
	k.controller("nvme0", red, first)
	a := k.attacher()
	for key, l := range map[string]access.NVMe{"tlsKey": {TLSKey: "k"}, "dhchapKey": {DHChapKey: "k"}} {
		l.Transport, l.NQN, l.Paths = "tcp", red, []netip.AddrPort{first}
		err := a.connectPaths(t.Context(), l, a.host(l))
		testkit.WantError(t, key, err, errs.Precondition, red+" is connected without as nvme0", "the same "+key)
	}
	k.write("class/nvme/nvme0/dhchap_secret", "DHHC-1:00:hush:")
	l := access.NVMe{Transport: "tcp", NQN: red, Paths: []netip.AddrPort{first}, DHChapKey: "k"}
	testkit.Must(t, a.connectPaths(t.Context(), l, a.host(l)))
}

// A volume whose target is away is detached by the second call. Other errors do
// not end the wait.
func TestFailedFlush(t *testing.T) {
	a := testkit.Value(New(Config{Dir: t.TempDir(), HostNQN: self, Boot: "b"}))(t)
	n := kernel.Namespace{Path: "/dev/nvme0n1"}
	for errno, lost := range map[unix.Errno]bool{
		unix.EIO: true, unix.ENOLINK: true, unix.ETIMEDOUT: true, unix.ENOSPC: true, unix.ENODEV: true, unix.ENXIO: true, unix.EINTR: false,
	} {
		err := &fs.PathError{Op: "sync", Path: n.Path, Err: errno}
		testkit.WantError(t, "the first flush", a.checkFlush(n, err), errno, "flush /dev/nvme0n1")
		if again := a.checkFlush(n, err); (again == nil) != lost {
			t.Errorf("%v, the second flush: %v, want an error: %t", errno, again, !lost)
		}
	}
	testkit.Must(t, a.checkFlush(n, nil), a.Close(testkit.Context(t)))
}

// A second driver with the same host NQN waits for the end of the first one, and
// fails if that is not ending.
func TestLockHostNQN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nqn := access.HostNQN(rand.Text())
		lock := testkit.Value(LockHostNQN(t.Context(), nqn))(t)
		other := testkit.Value(LockHostNQN(t.Context(), access.HostNQN(rand.Text())))(t)
		begun := time.Now()
		_, err := LockHostNQN(t.Context(), nqn)
		testkit.WantError(t, "a second driver", err, unix.EADDRINUSE, nqn, "csi.nvme.clusterID")
		if waited := time.Since(begun); waited < time.Minute {
			t.Errorf("it waited %v, want a minute", waited)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		testkit.WantError(t, "a driver that is stopped", testkit.Err(LockHostNQN(ctx, nqn)), context.DeadlineExceeded)
		time.AfterFunc(30*time.Second, func() { testkit.Must(t, lock.Close()) })
		next := testkit.Value(LockHostNQN(t.Context(), nqn))(t)
		testkit.Must(t, next.Close(), other.Close())
	})
}
