package nvme

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

const (
	nqn     = "nqn.2024-01.example:red"
	hostID  = "5b6a1f52-0d3c-4c53-8f6e-00000000000a"
	hostNQN = "nqn.2014-08.org.nvmexpress:uuid:" + hostID
)

func connection() Connection {
	return Connection{
		Transport: "tcp", Address: netip.MustParseAddrPort("[2001:db8::7]:4420"), NQN: nqn, HostNQN: hostNQN, HostID: hostID,
		Loss: -1, Delay: 2, FastFail: 60, KeepAlive: 5,
	}
}

func TestLine(t *testing.T) {
	const base = "transport=tcp,traddr=2001:db8::7,trsvcid=4420,nqn=" + nqn + ",hostnqn=" + hostNQN + ",hostid=" + hostID + ",keep_alive_tmo=5,ctrl_loss_tmo=-1"
	c := connection()
	if got, want := c.line(), base+",reconnect_delay=2,fast_io_fail_tmo=60"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	c.Delay, c.FastFail, c.IOQueues, c.HeaderDigest, c.DataDigest, c.Key, c.TargetKey = 0, 0, 3, true, true, "DHHC-1:00:a:", "DHHC-1:00:b:"
	c.PSK, c.tlsKey = &PSK{}, 1234
	if got, want := c.line(), base+",nr_io_queues=3,hdr_digest,data_digest,dhchap_secret=DHHC-1:00:a:,dhchap_ctrl_secret=DHHC-1:00:b:,tls,tls_key=1234"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	known := map[string]bool{}
	for word := range strings.SplitSeq(c.line(), ",") {
		name, _, _ := strings.Cut(word, "=")
		known[name] = name != "dhchap_ctrl_secret"
	}
	if got := c.unknown(known); got != "dhchap_ctrl_secret" {
		t.Errorf("the unknown option is %q", got)
	}
	if got := c.unknown(nil); got != "" {
		t.Errorf("a kernel that lists no options does not know %q", got)
	}
}

// What would become another option is refused, and keys are not shown.
func TestConnectionRefuses(t *testing.T) {
	for name, change := range map[string]func(*Connection){
		"option in the NQN":  func(c *Connection) { c.NQN += ",hostid=x" },
		"line in the NQN":    func(c *Connection) { c.NQN += "\n" },
		"option in a key":    func(c *Connection) { c.Key = "DHHC-1:hush,tls" },
		"NUL in the host ID": func(c *Connection) { c.HostID += "\x00" },
		"TLS over RDMA":      func(c *Connection) { c.Transport, c.PSK = "rdma", &PSK{} },
		"no address":         func(c *Connection) { c.Address = netip.AddrPort{} },
		"no host NQN":        func(c *Connection) { c.HostNQN = "" },
	} {
		c := connection()
		change(&c)
		if err := c.check(); errs.KindOf(err) != errs.Invalid || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v, want an error of kind invalid", name, err)
		}
	}
	testkit.Must(t, connection().check())
}

func TestExplain(t *testing.T) {
	for _, c := range []struct {
		errno  unix.Errno
		reason string
		kind   errs.Kind
		word   string
	}{
		{unix.EIO, `nvme nvme0: Connect Invalid Data Parameter, subsysnqn "` + nqn + `"`, errs.NotFound, "no such subsystem"},
		{unix.EIO, "nvme nvme0: Connect for subsystem " + nqn + " is not allowed, hostnqn: " + hostNQN, errs.Unauthenticated, hostNQN},
		{unix.EIO, "", errs.Unavailable, hostNQN},
		{unix.ECONNREFUSED, "", errs.Unavailable, "refused"},
		{unix.ETIMEDOUT, "", errs.Unavailable, "timed out"},
		{unix.EALREADY, "", errs.Exists, ""},
		{unix.ENOKEY, "", errs.Unauthenticated, "dhchapKey"},
		{unix.EKEYREJECTED, "", errs.Unauthenticated, "DH-HMAC-CHAP"},
		{unix.ELIBBAD, "", errs.Unauthenticated, "DH group"},
		{unix.EINVAL, "", errs.Precondition, hostID},
		{unix.ENOMEM, "", errs.Internal, "memory"},
	} {
		err := connection().explain(&fs.PathError{Op: "write", Path: "/dev/nvme-fabrics", Err: c.errno}, c.reason)
		if errs.KindOf(err) != c.kind || !errors.Is(err, c.errno) || !strings.Contains(err.Error(), c.word) || !strings.Contains(err.Error(), "[2001:db8::7]:4420") {
			t.Errorf("%v, %q: %v; want kind %q, with %q and the address", c.errno, c.reason, err, c.kind, c.word)
		}
	}
}

func TestIsNamespace(t *testing.T) {
	for name, want := range map[string]bool{
		"nvme0n1": true, "nvme12n34": true, "nvme0c0n1": false, "nvme0n1p2": false, "nvme0": false, "sda": false, "nvmen1": false, "0n1": false, "nvme0n": false,
	} {
		if got := isNamespace(name); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
}

func TestParseSize(t *testing.T) {
	data := make([]byte, identifySize)
	binary.LittleEndian.PutUint64(data, 1000)
	data[26] = 1         // the second format
	data[128+4+2] = 12   // 4096 bytes
	data[128+4*17+2] = 9 // of the 18th
	want := map[byte]int64{1: 1000 << 12, 1 | 1<<5: 1000 << 9}
	for flbas, size := range want {
		data[26] = flbas
		if got, err := parseSize(data); err != nil || got != size {
			t.Errorf("FLBAS %#x: %d, %v; want %d", flbas, got, err, size)
		}
	}
	binary.LittleEndian.PutUint64(data, 1<<60)
	if got, err := parseSize(data); err == nil {
		t.Errorf("a size of 2^69 bytes is read as %d", got)
	}
}

func FuzzParseSize(f *testing.F) {
	f.Add(make([]byte, identifySize))
	f.Fuzz(func(t *testing.T, data []byte) {
		full := make([]byte, identifySize)
		copy(full, data)
		if size, err := parseSize(full); err == nil && size < 0 {
			t.Errorf("negative size %d", size)
		}
	})
}

// tree is sysfs as Linux 6.12 shows a connection of TCP and a disk of PCIe.
var tree = map[string]string{
	"class/nvme/nvme0/transport":     "pcie\n",
	"class/nvme/nvme0/address":       "0000:01:00.0\n",
	"class/nvme/nvme0/subsysnqn":     "nqn.2019-08.org.qemu:x\n",
	"class/nvme/nvme0/state":         "live\n",
	"class/nvme/nvme1/transport":     "tcp\n",
	"class/nvme/nvme1/address":       "traddr=192.0.2.1,trsvcid=4420,src_addr=192.0.2.7\n",
	"class/nvme/nvme1/subsysnqn":     nqn + "\n",
	"class/nvme/nvme1/state":         "connecting\n",
	"class/nvme/nvme1/hostnqn":       hostNQN + "\n",
	"class/nvme/nvme1/hostid":        hostID + "\n",
	"class/nvme/nvme1/dhchap_secret": "DHHC-1:00:x:\n",
	"class/nvme/nvme1/tls_key":       "(null)\n",
	"class/nvme/nvme2/transport":     "tcp\n", // being removed
	"block/nvme3n2/device/subsysnqn": nqn + "\n",
	"block/nvme3n2/dev":              "259:70000\n",
	"block/nvme3n2/nsid":             "2\n",
	"block/nvme3n2/wwid":             "uuid.7c0f7c6e-53a5-4f0e-9a1b-000000000001\n",
	"block/nvme3n2/uuid":             "7c0f7c6e-53a5-4f0e-9a1b-000000000001\n",
	"block/nvme3n2/nguid":            "00112233-4455-6677-8899-aabbccddeeff\n",
	"block/nvme3n2/size":             "2048\n",
	"block/nvme3n2/ro":               "1\n",

	"block/nvme3n2/queue/write_cache":       "write back\n",
	"block/nvme3c1n2/device/subsysnqn":      nqn + "\n",
	"block/sda/dev":                         "8:0\n",
	"module/nvme_core/parameters/multipath": "Y\n",
}

func sysfsTree(t *testing.T) *Kernel {
	k := &Kernel{Sys: t.TempDir(), Dev: "/dev"}
	for name, text := range tree {
		path := filepath.Join(k.Sys, name)
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600))
	}
	return k
}

func TestSysfs(t *testing.T) {
	k := sysfsTree(t)
	fabrics := Controller{
		Name: "nvme1", Transport: "tcp", Address: netip.MustParseAddrPort("192.0.2.1:4420"), NQN: nqn, State: "connecting",
		HostNQN: hostNQN, HostID: hostID, Authenticated: true,
	}
	want := []Controller{{Name: "nvme0", Transport: "pcie", NQN: "nqn.2019-08.org.qemu:x", State: StateLive}, fabrics}
	if got := testkit.Value(k.Controllers())(t); len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("controllers: %+v\nwant %+v", got, want)
	}
	disk := Namespace{
		Path: "/dev/nvme3n2", Major: 259, Minor: 70000, NQN: nqn, NSID: 2, UUID: "7c0f7c6e-53a5-4f0e-9a1b-000000000001",
		NGUID: "00112233445566778899aabbccddeeff", WWID: "uuid.7c0f7c6e-53a5-4f0e-9a1b-000000000001", Size: 1 << 20, ReadOnly: true, WriteBack: true,
	}
	if got := testkit.Value(k.Namespaces(nqn))(t); len(got) != 1 || got[0] != disk {
		t.Errorf("namespaces: %+v\nwant %+v", got, disk)
	}
	if !testkit.Value(k.IsMultipath())(t) {
		t.Error("multipath is read as off")
	}
	bare := &Kernel{Sys: filepath.Join(k.Sys, "none")}
	if got, err := bare.Controllers(); err != nil || got != nil || testkit.Value(bare.IsMultipath())(t) {
		t.Errorf("without the module: %v, %v", got, err)
	}
	renamed := fabrics
	renamed.HostNQN = "nqn.2024-01.example:other"
	testkit.Must(t, k.Delete(t.Context(), renamed)) // its name is another controller's now
	if text := testkit.Value(os.ReadDir(filepath.Join(k.Sys, "class/nvme/nvme1")))(t); len(text) != 8 {
		t.Errorf("the other controller was changed: %v", text)
	}
}

// An attribute that exists and cannot be read is not taken for one that does not
// exist: a connection of this host would be another's, and stay after Detach.
func TestUnreadableAttribute(t *testing.T) {
	for name, read := range map[string]func(*Kernel) error{
		"class/nvme/nvme1/hostnqn":              func(k *Kernel) error { return testkit.Err(k.Controllers()) },
		"class/nvme/nvme1/dhchap_secret":        func(k *Kernel) error { return testkit.Err(k.Controllers()) },
		"block/nvme3n2/uuid":                    func(k *Kernel) error { return testkit.Err(k.Namespaces(nqn)) },
		"module/nvme_core/parameters/multipath": func(k *Kernel) error { return testkit.Err(k.IsMultipath()) },
	} {
		k := sysfsTree(t)
		path := filepath.Join(k.Sys, name)
		testkit.Must(t, os.Remove(path), os.Mkdir(path, 0o700)) // read(2) fails
		testkit.WantError(t, name, read(k), unix.EISDIR)
	}
}
