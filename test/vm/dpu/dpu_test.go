package dpu

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/kernel"
	"github.com/cleatproject/cleat/volume/access"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	volumes = "/run/volumes"
	keys    = "/run/keys"
	clouds  = "/run/ceph"
	name    = "pvc-1"
	// patience is the deadline of calls that must succeed, brief that of calls
	// to servers that do not answer.
	patience = time.Minute
	brief    = 4 * time.Second
)

// job and answer mirror the types of the program mounter.
type job struct {
	Do, Name             string
	Spec                 plan.MountSpec
	Dir, KeyDir, CephDir string
	Deadline             time.Duration
}

type answer struct {
	Error   string
	Kind    errs.Kind
	Mounted bool
	Took    time.Duration
	Log     string
}

// rig is a guest that is its own NFS server.
type rig struct{ *kernel.Kernel }

func newRig(t *testing.T) rig {
	t.Helper()
	g := vm.Boot(t, vm.Spec{
		Name: "dpu", Programs: []string{testkit.Build(t, "./test/vm/dpu/mounter")},
		Modules: []string{"nfs", "nfsv3", "nfsv4", "nfsd", "ceph", "nf_tables", "nft_reject_inet"},
		Tools:   []string{"rpcbind", "exportfs", "rpc.mountd", "rpc.nfsd", "nft", "mount", "umount"},
	})
	r := rig{kernel.Of(t, g)}
	r.serve()
	return r
}

// serve starts the kernel's NFS server with a writable and a read-only export.
func (r rig) serve() {
	r.Helper()
	for path, text := range map[string]string{
		"/etc/netconfig": "udp tpi_clts v inet udp - -\ntcp tpi_cots_ord v inet tcp - -\nlocal tpi_cots_ord - loopback - - -\n",
		"/etc/services":  "sunrpc 111/tcp portmapper\nsunrpc 111/udp portmapper\nnfs 2049/tcp\n",
		"/etc/protocols": "tcp 6 TCP\nudp 17 UDP\n",
		"/etc/exports":   "/srv/data *(rw,fsid=1,no_root_squash,no_subtree_check,insecure)\n/srv/fixed *(ro,fsid=2,no_subtree_check,insecure)\n",
		"/etc/nfs.conf":  "[mountd]\n",
	} {
		testkit.Must(r, r.Guest.WriteFile(r.Context(), path, []byte(text), 0o644))
	}
	r.Run("mkdir", "-p", "/srv/data", "/srv/fixed", "/var/lib/nfs/v4recovery", volumes, keys, clouds)
	r.Run("mount", "-t", "tmpfs", "data", "/srv/data")
	r.Run("mount", "-t", "tmpfs", "fixed", "/srv/fixed")
	r.Run("mkdir", "/srv/data/sub", "/srv/data/with blank")
	r.Run("sh", "-c", "echo top > /srv/data/file; echo sub > /srv/data/sub/file; echo fixed > /srv/fixed/file")
	if r.Run("sh", "-c", "grep -q ' /proc/fs/nfsd ' /proc/mounts || echo absent") == "absent" {
		r.Run("mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd")
	}
	r.Run("sh", "-c", "touch /var/lib/nfs/etab /var/lib/nfs/rmtab")
	r.Run("sh", "-c", "mkdir /run/rpcbind; echo _rpc:x:106:65534::/run/rpcbind:/bin/false >> /etc/passwd") // the user of rpcbind
	r.Run("rpcbind")
	r.Run("exportfs", "-a")
	r.Run("rpc.mountd")
	// End the grace period: a server that never ran has no client state to
	// reclaim.
	for _, file := range []string{"nfsv4leasetime", "nfsv4gracetime"} {
		r.Write("/proc/fs/nfsd/"+file, "10")
	}
	r.Run("rpc.nfsd", "4")
	r.Write("/proc/fs/nfsd/v4_end_grace", "Y")
}

func (r rig) do(j job) answer {
	r.Helper()
	j.Dir, j.KeyDir, j.CephDir = volumes, keys, clouds
	if j.Name == "" {
		j.Name = name
	}
	if j.Deadline == 0 {
		j.Deadline = patience
	}
	text := testkit.Value(json.Marshal(j))(r)
	var a answer
	testkit.Must(r, json.Unmarshal([]byte(r.Run("mounter", string(text))), &a))
	return a
}

// works runs a job that must succeed.
func (r rig) works(what string, spec plan.MountSpec) answer {
	r.Helper()
	a := r.do(job{Do: what, Spec: spec})
	if a.Error != "" {
		r.Errorf("%s: %s (%s)", what, a.Error, a.Kind)
	}
	return a
}

// refuses verifies that a mount fails in time with an error of the kind that
// contains all words, and leaves nothing.
func (r rig) refuses(bound time.Duration, spec plan.MountSpec, kind errs.Kind, words ...string) answer {
	r.Helper()
	a := r.do(job{Do: "mount", Spec: spec, Deadline: bound})
	r.wants(a, kind, words...)
	r.wantsNothing()
	return a
}

func (r rig) wants(a answer, kind errs.Kind, words ...string) {
	r.Helper()
	if a.Error == "" || a.Kind != kind {
		r.Errorf("got %q (%s), want an error of kind %q", a.Error, a.Kind, kind)
	}
	for _, w := range words {
		if !strings.Contains(a.Error, w) {
			r.Errorf("got error %s, want it to contain %q", a.Error, w)
		}
	}
}

func (r rig) wantsNothing() {
	r.Helper()
	if left := r.Names(volumes); len(left) > 0 {
		r.Errorf("left over in the volumes directory: %v", left)
	}
	if left := r.Run("sh", "-c", "grep "+volumes+" /proc/mounts || true"); left != "" {
		r.Errorf("left over mounts: %s", left)
	}
}

func nfs(share, sub string, options ...string) plan.MountSpec {
	return plan.MountSpec{NFS: &access.NFS{Server: "127.0.0.1", Share: share, SubDir: sub, Options: options}}
}

func readOnly(s plan.MountSpec) plan.MountSpec {
	s.ReadOnly = true
	return s
}

func TestMounts(t *testing.T) {
	r := newRig(t)
	begun := time.Now()
	r.versions()
	r.modes()
	r.wrong()
	r.ceph()
	r.frozen()
	r.orphan()
	for _, version := range soak.Pick(1, []string{"vers=4.2", "vers=3"}) {
		r.diedIdle(version)
	}
	for _, version := range soak.Pick(1, []string{"vers=3", "vers=4.2"}) {
		r.diedBusy(version)
	}
	fmt.Printf("REPORT: hostfs with NFS of kernel %s: mounted, refused and unmounted, with a frozen and a dead server, in %.1f s\n", r.Guest.Release(), time.Since(begun).Seconds())
}

// versions verifies that the newest common NFS version is used, unless the
// locator specifies one.
func (r rig) versions() {
	r.Helper()
	for _, c := range soak.Pick(3, []struct{ option, fsType, shown string }{
		{"", "nfs4", "vers=4.2"}, {"vers=3,nolock", "nfs", "vers=3"}, {"nfsvers=4.1", "nfs4", "vers=4.1"}, {"vers=4", "nfs4", "vers=4.2"}, {"v4.0", "nfs4", "vers=4.0"},
	}) {
		var options []string
		if c.option != "" {
			options = strings.Split(c.option, ",")
		}
		dirs := []struct{ sub, says string }{{"sub", "sub"}, {"", "top"}}
		if c.option != "" {
			dirs = soak.Pick(1, dirs)
		}
		for _, dir := range dirs {
			spec := nfs("/srv/data", dir.sub, options...)
			for range 2 {
				r.works("mount", spec)
				if a := r.works("mounted", spec); !a.Mounted {
					r.Errorf("%q: Mounted returned false", c.option)
				}
			}
			line := r.Run("grep", volumes, "/proc/self/mountinfo")
			for _, want := range []string{" - " + c.fsType + " 127.0.0.1:/srv/data", c.shown + ",", "nosuid,nodev"} {
				if !strings.Contains(line, want) || strings.Contains(line, "\n") {
					r.Errorf("%q: missing %q in %s", c.option, want, line)
				}
			}
			if got := r.Read(volumes + "/" + name + "/file"); got != dir.says {
				r.Errorf("%q: got file contents %q", c.option, got)
			}
			r.Run("sh", "-c", "echo new > "+volumes+"/"+name+"/new")
			if got := r.Read("/srv/data/" + dir.sub + "/new"); got != "new" {
				r.Errorf("%q: got %q on the server", c.option, got)
			}
			r.works("unmount", spec)
			r.works("unmount", spec)
			r.wantsNothing()
		}
	}
}

// modes verifies read-only mounts, an existing other mount, a busy mount and a
// name with a blank.
func (r rig) modes() {
	r.Helper()
	r.works("mount", readOnly(nfs("/srv/data", "")))
	if err := r.TryWrite(volumes+"/"+name+"/no", "x"); err == nil {
		r.Error("wrote through a read-only mount")
	}
	if line := r.Run("grep", volumes, "/proc/self/mountinfo"); strings.Count(line, " ro,") != 2 {
		r.Errorf("mount and file system are not both read-only: %s", line)
	}
	r.wants(r.do(job{Do: "mount", Spec: nfs("/srv/data", "")}), errs.Precondition, "127.0.0.1:/srv/data (nfs4, read-only)", "(writable)")
	r.wants(r.do(job{Do: "mounted", Spec: readOnly(nfs("/srv/data", "sub"))}), errs.Precondition, "127.0.0.1:/srv/data/sub (read-only)")
	r.works("unmount", plan.MountSpec{})

	// The mount table shows the host name, but an address of the same server
	// matches.
	byName := nfs("/srv/data", "with blank")
	byName.NFS.Server = "localhost"
	r.works("mount", byName)
	r.works("mount", byName)
	other := nfs("/srv/data", "with blank")
	if a := r.works("mounted", other); !a.Mounted {
		r.Error("the server's address does not match its name")
	}
	hold := testkit.Value(r.Guest.Start(r.Context(), vm.Command{Argv: []string{"sleep", "600"}, Dir: volumes + "/" + name}))(r)
	r.wants(r.do(job{Do: "unmount"}), errs.Precondition, "in use: it is used by")
	r.Run("sh", "-c", "kill $(pidof sleep)")
	<-hold.Done()
	r.works("unmount", byName)
	r.wantsNothing()
}

// wrong verifies the errors of requests that the server rejects.
func (r rig) wrong() {
	r.Helper()
	r.refuses(patience, nfs("/srv/none", "", "vers=4"), errs.Precondition, "127.0.0.1:/srv/none", "no such file or directory", "does not have this directory")
	r.refuses(patience, nfs("/srv/data", "none", "vers=4.2"), errs.Precondition, "127.0.0.1:/srv/data/none", "does not have this directory")
	r.refuses(patience, nfs("/srv/none", "", "vers=3", "nolock"), errs.Precondition, "127.0.0.1:/srv/none")
	r.refuses(patience, nfs("/srv/data", "", "vers=3"), errs.Precondition, "rpc.statd", "add nolock to mountoptions")
	r.refuses(patience, nfs("/srv/data", "", "nonesuch=1"), errs.Invalid, "nonesuch")
	r.refuses(patience, nfs("/srv/data", "", "addr=192.0.2.1"), errs.Invalid, "addr is not allowed")
	if a := r.refuses(patience, nfs("/srv/data", "", "port=2050"), errs.Unavailable, "connection refused", "does not serve NFS"); a.Took > patience {
		r.Errorf("the mount took %v", a.Took)
	}
	nowhere := nfs("/srv/data", "")
	nowhere.NFS.Server = "no-such-host.invalid"
	r.refuses(brief, nowhere, errs.Unavailable, "look up the NFS server", "no-such-host.invalid")
}
