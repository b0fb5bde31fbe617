package dpu

import (
	"encoding/base64"
	"encoding/json"
	"net/netip"
	"strings"
	"time"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/volume/access"
)

// ceph verifies that the kernel accepts all options and the key, and then fails
// to find a monitor.
func (r rig) ceph() {
	r.Helper()
	// Key format: type 1, a timestamp, the length and 16 bytes of key.
	secret := append([]byte{1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 0}, make([]byte, 16)...)
	text := "[client.cleat]\n\tkey = " + base64.StdEncoding.EncodeToString(secret) + "\n"
	testkit.Must(r, r.Guest.WriteFile(r.Context(), keys+"/east", []byte(text), 0o600))
	testkit.Must(r, r.Guest.WriteFile(r.Context(), clouds+"/east.conf", []byte("[global]\nmon host = [v2:127.0.0.1:3300/0,v1:127.0.0.1:6789/0]\n"), 0o644))
	for _, c := range []access.CephFS{
		{Ceph: access.Ceph{ClusterID: "east", User: "cleat", Key: "east"}, FS: "cephfs", Path: "/volumes/a"},
		{Ceph: access.Ceph{Monitors: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:3300")}, Key: "east"}, Path: "/"},
	} {
		a := r.refuses(brief, plan.MountSpec{CephFS: &c, ReadOnly: true}, errs.Unavailable, "127.0.0.1:", "no monitor")
		for _, no := range []string{"invalid argument", "mount option", base64.StdEncoding.EncodeToString(secret)} {
			if strings.Contains(a.Error, no) {
				r.Errorf("the error contains %q: %s", no, a.Error)
			}
		}
	}
	if log := r.Run("dmesg"); !strings.Contains(log, "libceph: mon0 (1)127.0.0.1:6789") || !strings.Contains(log, "libceph: mon0 (2)127.0.0.1:3300") {
		r.Error("the kernel did not try both protocols of the monitors")
	}
	if left := r.Run("cat", "/proc/keys"); strings.Contains(left, "cleat-") {
		r.Errorf("keys are left over:\n%s", left)
	}
	r.refuses(brief, plan.MountSpec{CephFS: &access.CephFS{Ceph: access.Ceph{ClusterID: "east", User: "other", Key: "east"}, Path: "/"}}, errs.Precondition, "no key for client.other")
}

// freeze drops packets to the NFS server, so that it neither answers nor
// refuses.
func (r rig) freeze() (thaw func()) {
	r.Helper()
	r.Run("nft", "add table inet frozen; add chain inet frozen in { type filter hook input priority 0; }; add rule inet frozen in tcp dport 2049 drop")
	return func() { r.Helper(); r.Run("nft", "delete table inet frozen") }
}

// frozen verifies that a mount fails at its deadline, leaves nothing, and works
// later.
func (r rig) frozen() {
	r.Helper()
	thaw := r.freeze()
	for _, spec := range soak.Pick(1, []plan.MountSpec{nfs("/srv/data", ""), nfs("/srv/data", "", "vers=3", "nolock")}) {
		a := r.refuses(brief, spec, errs.Unavailable, "no response from the server within 4s", "check that the server is up")
		if a.Took < brief || a.Took > brief+patience {
			r.Errorf("the mount took %v with a deadline of %v", a.Took, brief)
		}
	}
	r.wantsNoHelper()
	thaw()
	r.works("mount", nfs("/srv/data", ""))
	r.works("unmount", nfs("/srv/data", ""))
}

// helpers lists the running helper processes.
func (r rig) helpers() string {
	r.Helper()
	return r.Run("sh", "-c", "grep -l dpu-moun[t] /proc/[0-9]*/cmdline || true")
}

func (r rig) wantsNoHelper() {
	r.Helper()
	r.Await("no helper is left", func() bool { return r.helpers() == "" })
}

// orphan verifies that a helper exits when the plugin is killed.
func (r rig) orphan() {
	r.Helper()
	thaw := r.freeze()
	text := testkit.Value(json.Marshal(job{Do: "mount", Name: name, Dir: volumes, Spec: nfs("/srv/data", ""), Deadline: 10 * time.Minute}))(r)
	p := testkit.Value(r.Guest.Start(r.Context(), vm.Command{Argv: []string{"mounter", string(text)}}))(r)
	r.Await("a helper runs", func() bool { return r.helpers() != "" })
	r.Run("sh", "-c", "kill -9 $(pidof mounter)")
	<-p.Done()
	r.wantsNoHelper()
	thaw()
	r.works("mount", nfs("/srv/data", "")) // the directory is left over
	r.works("unmount", nfs("/srv/data", ""))
	r.wantsNothing()
}

// lifespan is the deadline of an unmount with a dead server; latest adds time
// for the cleanup on a busy host.
const lifespan, latest = 2 * brief, 2*brief + patience

// diedIdle verifies that an unused mount of a dead server can be queried and
// unmounted without an answer of the server.
func (r rig) diedIdle(version string) {
	r.Helper()
	spec := nfs("/srv/data", "", version, "nolock")
	r.works("mount", spec)
	thaw := r.freeze()
	if a := r.works("mounted", spec); !a.Mounted || a.Took > latest {
		r.Errorf("%s: Mounted with a dead server: got %+v", version, a)
	}
	r.works("mount", spec) // idempotent
	r.unmountDead(version)
	r.wantsNothing()
	r.wantsNoHelper()
	thaw()
}

func (r rig) unmountDead(version string) {
	r.Helper()
	a := r.do(job{Do: "unmount", Deadline: lifespan})
	if a.Error != "" || a.Took > latest {
		r.Errorf("%s: the unmount with a dead server took %v: %s", version, a.Took, a.Error)
	}
	r.Logf("%s: unmounted in %v; log: %s", version, a.Took, a.Log)
}

// diedBusy verifies that a mount in use is kept even if its server is dead, and
// that the error reports the use.
func (r rig) diedBusy(version string) {
	r.Helper()
	spec := nfs("/srv/data", "", version, "nolock")
	r.works("mount", spec)
	r.Run("sh", "-c", "rm -f /run/go; mkfifo /run/go")
	p := testkit.Value(r.Guest.Start(r.Context(), vm.Command{Argv: []string{"sh", "-c", "exec 3>" + volumes + "/" + name + "/kept; echo opened; read x < /run/go; echo kept >&3"}}))(r)
	r.Await("the writer has its file", func() bool { return strings.Contains(p.Log(), "opened") })
	thaw := r.freeze()
	a := r.do(job{Do: "unmount", Deadline: 2 * patience})  // half of it until the unmount is forced
	r.wants(a, errs.Precondition, "in use: it is used by") // the search for users is limited to half a second, so a guest might find none
	thaw()
	r.Run("sh", "-c", "echo > /run/go")
	select {
	case <-p.Done():
	case <-time.After(2 * patience): // TCP sends again after as long as it got no answer
		r.Fatalf("%s: the writer is still blocked", version)
	}
	if err := p.Err(); err != nil {
		r.Errorf("%s: the writer failed: %v", version, err)
	}
	if got := r.Read("/srv/data/kept"); got != "kept" {
		r.Errorf("%s: got %q on the server", version, got)
	}
	r.works("unmount", spec)
	r.wantsNothing()
}
