package sock

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/ports"
	"github.com/cleatproject/cleat/internal/linux/sockdiag"
	"github.com/cleatproject/cleat/internal/linux/sockfd"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// The same server and its sessions, accepted and not, on fenced ports and others.
func TestCoverage(t *testing.T) {
	namespace(t)
	accepts := start(t, "echo", serverV4)
	queues := start(t, "idle", serverV6)
	want(t, open(t, Config{}), 0, clientV4+"/32", clientV6+"/128")
	connect(t, clientV4, serverV4)
	send(t, connect(t, clientV6, serverV6), 1)
	want(t, open(t, Config{}), 2, clientV4+"/32", clientV6+"/128")
	for name, c := range map[string]struct{ ports, want string }{
		"fenced":   {"4420", "2 servers, 2 sessions"},
		"unfenced": {"1", "2 unfenced, 2 unprotected"},
	} {
		s := open(t, Config{Ports: testkit.Value(ports.Parse([]string{c.ports}))(t)})
		testkit.EventuallyNil(t, "coverage", func() error {
			found, err := s.Coverage(t.Context(), blocks(clientV4+"/32", clientV6+"/128"))
			if got := summary(found); err != nil || got != c.want {
				return fmt.Errorf("%s: %s, want %s (%v)", name, got, c.want, err)
			}
			for _, one := range slices.Concat(found.Sessions, found.Unprotected) {
				if server := map[bool]*server{true: accepts, false: queues}[one.Server.Addr().Is4()]; !strings.HasPrefix(one.Holder, server.String()) {
					return fmt.Errorf("%s: held by %s, want %s", name, one.Holder, server)
				}
			}
			return nil
		})
		if found := testkit.Value(s.Coverage(t.Context(), blocks("10.1.0.0/16")))(t); len(found.Sessions)+len(found.Unprotected) > 0 {
			t.Errorf("%s: sessions of others: %+v", name, found)
		}
	}
}

// summary counts what is not empty.
func summary(c volume.Coverage) string {
	var words []string
	for _, one := range []struct {
		name string
		n    int
	}{
		{"servers", len(c.Servers)}, {"unfenced", len(c.Unfenced)}, {"sessions", len(c.Sessions)}, {"unobserved", len(c.Unobserved)},
		{"unprotected", len(c.Unprotected)}, {"others", len(c.Others)},
	} {
		if one.n > 0 {
			words = append(words, fmt.Sprintf("%d %s", one.n, one.name))
		}
	}
	return strings.Join(words, ", ")
}

// Which listeners and sessions count.
func TestCoverageByProgram(t *testing.T) {
	const client, local = "10.0.0.7:1000", "10.0.0.1:"
	for name, c := range map[string]struct {
		port    uint16
		process string
		only    string // listener or session
		want    string
	}{
		"a fenced port":                        {4420, "anything", "", "1 servers, 1 sessions"},
		"a fenced port of the kernel":          {4420, "", "", "1 servers, 1 sessions, 1 unobserved"},
		"a known server":                       {7000, "nbd-server", "", "1 unfenced, 1 unprotected"},
		"SPDK on another core":                 {7000, "reactor_12", "", "1 unfenced, 1 unprotected"},
		"a longer name":                        {7000, "qemu-storage-da", "", "1 unfenced, 1 unprotected"},
		"the kernel":                           {7000, "", "", "1 unfenced, 1 unprotected"},
		"another program":                      {22, "sshd", "", "1 others"},
		"another program's storage port":       {3260, "my-target", "", "1 unfenced, 1 unprotected"},
		"an outgoing connection from its port": {49200, "kubelet", "session", "1 others"},
	} {
		v := coverageView{config: Config{Ports: testkit.Value(ports.Parse([]string{"4420"}))(t)}, listeners: map[uint16][]sockdiag.Socket{}, held: map[uint32][]sockfd.Process{}}
		here := netip.MustParseAddrPort(local + fmt.Sprint(c.port))
		if c.only != "session" {
			v.listeners[c.port] = []sockdiag.Socket{{State: sockdiag.Listen, Local: here, Inode: 1}}
		}
		v.sessions = []sockdiag.Socket{{State: sockdiag.Established, Local: here, Remote: netip.MustParseAddrPort(client), Inode: 2}}
		if c.process != "" {
			v.held[1] = []sockfd.Process{{PID: 1 << 30, Name: c.process}}
			v.held[2] = v.held[1]
		}
		if got := summary(v.coverage()); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// An RDMA server is found by its configuration or its open devices, if there is
// an RDMA device.
func TestRDMAServers(t *testing.T) {
	root := t.TempDir()
	put := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
	}
	for _, port := range []struct{ number, kind string }{{"1", "rdma"}, {"2", "tcp"}} {
		dir := "sys/kernel/config/nvmet/ports/" + port.number + "/"
		put(dir+"addr_trtype", port.kind+"\n")
		put(dir+"addr_traddr", "10.0.0.1\n")
		put(dir+"addr_trsvcid", "4420\n")
	}
	put("sys/kernel/config/target/iscsi/iqn.a/tpgt_1/np/10.0.0.1:3260/iser", "1\n")
	put("sys/kernel/config/target/iscsi/iqn.a/tpgt_1/np/10.0.0.1:3261/iser", "0\n")
	put("proc/fs/nfsd/portlist", "tcp 2049\nrdma 20049\n")
	put("sys/class/ksmbd-control/stats", "1 running 2 3\n")
	for pid, name := range map[string]string{"7": "nvmf_tgt", "8": "nvmf_tgt", "9": "mpirun"} {
		put("proc/"+pid+"/comm", name+"\n")
		testkit.Must(t, os.MkdirAll(filepath.Join(root, "proc", pid, "fd"), 0o700), os.Symlink("/dev/null", filepath.Join(root, "proc", pid, "fd/0")))
		if pid != "8" {
			testkit.Must(t, os.Symlink("/dev/infiniband/uverbs0", filepath.Join(root, "proc", pid, "fd", "3")))
		}
	}
	if none, err := rdmaServers(root); err != nil || len(none) != 0 {
		t.Errorf("without a device: %v, %v", none, err)
	}
	put("sys/class/infiniband/mlx5_0/node_type", "1: CA\n")
	var got []string
	for _, one := range testkit.Value(rdmaServers(root))(t) {
		got = append(got, fmt.Sprint(one.Address, " ", one.Holder))
	}
	testkit.Diff(t, "servers", []string{
		"10.0.0.1:4420 nvmet over RDMA", "10.0.0.1:3260 LIO iSCSI over RDMA (iSER)", "[::]:20049 nfsd over RDMA",
		"[::]:445 ksmbd, which accepts SMB Direct if the kernel has it", "invalid AddrPort nvmf_tgt (process 7) over RDMA",
	}, got)

	// What cannot be read is not absent.
	portlist := filepath.Join(root, "proc/fs/nfsd/portlist")
	testkit.Must(t, os.Remove(portlist), os.Mkdir(portlist, 0o700))
	testkit.WantError(t, "an unreadable list of nfsd", testkit.Err(rdmaServers(root)), errs.Unavailable, "portlist")
	testkit.Must(t, os.Remove(portlist))
	put("proc/8/fd/5", "") // no link, as a link that cannot be read
	testkit.WantError(t, "unreadable files of a server", testkit.Err(rdmaServers(root)), errs.Unavailable, "proc/8/fd")
}
