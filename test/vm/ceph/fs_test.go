package ceph

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/cephnet"
)

// testErrors: each mistake has its own error, and nothing shows the key.
func (r *fsRig) testErrors() {
	const n = 1
	c := r.claim("errors")
	other, wrong, noFS, closed := r.site, r.site, r.site, r.site
	other.User = "fsother"
	other.Key = testkit.Value(cluster.User(other.User, "mon", "allow r", "mds", "allow rw path=/volumes/other", "osd", "allow rw tag cephfs data="+fileSystem))(r)
	wrong.Key = other.Key
	noFS.FS = "missing"
	closed.Monitors = closed.Monitors[:0:0]
	for _, m := range r.site.Monitors {
		closed.Monitors = append(closed.Monitors, netip.AddrPortFrom(m.Addr(), 1))
	}
	r.describe(n, "/run/other.json", other)
	r.describe(n, "/run/wrong.json", wrong)
	r.describe(n, "/run/fs.json", noFS)
	r.describe(n, "/run/closed.json", closed)
	missing := &directory{fsRig: r, name: "missing", path: c.path + "x"}
	missing.fails(n, "stage", "not found")
	c.fails(n, "stage", "capabilities of client.fsother", "-site", "/run/other.json")
	c.fails(n, "stage", "refuses client.fsnode", "-site", "/run/wrong.json")
	c.fails(n, "stage", "the file system does not exist", "-site", "/run/fs.json")
	c.fails(n, "stage", "has not answered", "-site", "/run/closed.json", "-timeout", "4s")
	own := &directory{fsRig: r, name: "own", path: "/volumes/" + group + "/cleat-vol-0123456789abcdef0123456789abcdef/01234567-89ab-cdef-0123-456789abcdef"}
	parent := &directory{fsRig: r, name: "parent", path: "/volumes/" + group}
	parent.attach(n) // a directory without a quota
	parent.run(n, "mkdir -p "+strings.TrimPrefix(own.path, parent.path+"/"))
	own.fails(n, "stage", "still being copied")
	parent.detach(n)

	c.attach(n)
	k := r.nodes[n]
	for _, files := range []string{"/proc/self/mountinfo", "/proc/keys", "/proc/*/cmdline", "/proc/*/environ", fsState + "/cephfs/cephfs.test/*.json"} {
		if out, err := k.Try("sh", "-c", `cat `+files+` 2>/dev/null | grep -a -c -F "$0"`, r.site.Key); err == nil {
			r.Errorf("the key is in %s: %s lines", files, out)
		}
	}
	if keys := k.Read("/proc/keys"); strings.Contains(keys, "cleat/") {
		r.Errorf("the kernel keeps a key in a keyring after the mount:\n%s", keys)
	}
	c.detach(n)
	r.wantNothing(n)
}

// testVolume: quota, usage, growth, mount group, and a node whose state is lost.
func (r *fsRig) testVolume() {
	const n = 1
	c := r.claim("volume")
	c.flags = []string{"-group", "1234", "-flags", "noexec"}
	c.attach(n)
	if mode := c.run(n, "stat -c '%g %A' ."); mode != "1234 drwxrwsr-x" {
		r.Errorf("the root has %s", mode)
	}
	if out := c.run(n, "grep ' '$PWD' ' /proc/self/mountinfo"); !strings.Contains(out, "noexec") {
		r.Errorf("the mount flag is missing: %s", out)
	}
	c.run(n, "dd if=/dev/zero of=half bs=1M count=32 2>&1 && sync")
	if _, err := r.nodes[n].Try("sh", "-c", "dd if=/dev/zero of="+c.target()+"/all bs=1M count=96"); err == nil || !strings.Contains(strings.ToLower(err.Error()), "quota exceeded") {
		r.Errorf("writing more than the quota: %v", err)
	}
	c.run(n, "rm all && sync")
	if df := c.run(n, "df -P -k . | awk 'END { print $2 }'"); df != fmt.Sprint(64<<10) {
		r.Errorf("df shows %s KiB", df)
	}
	testkit.Value(cluster.Command("fs", "subvolume", "resize", fileSystem, c.name, fmt.Sprint(128*mib), "--group_name", group))(r)
	if out := c.call(n, "expand", "-size", fmt.Sprint(128*mib)); out != fmt.Sprint(128*mib) {
		r.Errorf("expand: %s", out)
	}
	if out := c.call(n, "stats"); !strings.Contains(out, fmt.Sprintf(`"Total":%d,"Used":%d`, 128*mib, 32*mib)) {
		r.Errorf("stats: %s", out)
	}
	if out := c.call(n, "health"); out != "null" {
		r.Errorf("health: %s", out)
	}
	r.nodes[n].Run("sh", "-c", "rm "+fsState+"/node.db && rm "+fsState+"/cephfs/cephfs.test/*.json")
	c.detach(n)
	r.wantNothing(n)
}

// testSnapshot: a directory in a snapshot is read only.
func (r *fsRig) testSnapshot() {
	const n = 1
	c := r.claim("source")
	c.attach(n)
	c.run(n, "echo old > file && sync")
	testkit.Value(cluster.Command("fs", "subvolume", "snapshot", "create", fileSystem, c.name, "s", "--group_name", group))(r)
	c.run(n, "echo new > file")
	inside := strings.TrimSpace(c.run(n, "ls .snap"))
	root := strings.TrimPrefix(c.path, "/volumes/"+group+"/"+c.name)
	for i, path := range []string{c.path + "/.snap/" + inside, "/volumes/" + group + "/" + c.name + "/.snap/s" + root} {
		s := &directory{fsRig: r, name: fmt.Sprintf("snapshot%d", i), path: path}
		s.fails(n, "stage", "ReadOnlyMany")
		s.flags = []string{"-read-only"}
		s.attach(n)
		if text := s.run(n, "cat file"); text != "old" {
			r.Errorf("the snapshot has %q", text)
		}
		if out, err := r.nodes[n].Try("touch", s.target()+"/file"); err == nil {
			r.Errorf("a snapshot is writable: %s", out)
		}
		s.call(n, "stats")
		s.detach(n)
	}
	c.detach(n)
	r.wantNothing(n)
}

// testShared: both nodes read what the other has written.
func (r *fsRig) testShared() {
	c := r.claim("shared")
	for n := range r.nodes {
		c.attach(n)
	}
	var sums [2]string
	for n := range r.nodes {
		sums[n] = c.run(n, fmt.Sprintf("dd if=/dev/urandom of=file%d bs=64k count=64 2>/dev/null && sync && sha256sum file%[1]d", n))
	}
	for n := range r.nodes {
		if got := c.run(1-n, fmt.Sprintf("sha256sum file%d", n)); got != sums[n] {
			r.Errorf("node %d reads %s, node %d wrote %s", 1-n, got, n, sums[n])
		}
	}
	for n := range r.nodes {
		c.detach(n)
		r.wantNothing(n)
	}
}

// testFence fences a client by the node's address, and another by its instance.
func (r *fsRig) testFence() {
	for n := range r.nodes {
		c := r.claim(fmt.Sprintf("fenced%d", n))
		c.attach(n)
		entry := c.instance(n)
		if n == 0 {
			entry = cephnet.GuestAddress(n).String()
		}
		c.run(n, "(while echo x >> log; do sleep 0.1; done 2> /run/writer.err; echo ended >> /run/writer.err) > /dev/null 2>&1 < /dev/null &")
		r.nodes[n].Await("the writer writes", func() bool { return c.run(n, "cat log 2> /dev/null | wc -c") != "0" })
		r.nodes[n].Run("sh", "-c", "cd "+fsPaths+"/"+c.name+"/staging && (exec unshare -m sleep 1000 > /dev/null 2>&1 < /dev/null &)")
		begun := time.Now()
		r.fence("add", entry)
		r.nodes[n].Await("the writer fails", func() bool { return strings.Contains(r.nodes[n].Read("/run/writer.err"), "ended") })
		failed := time.Since(begun)
		r.nodes[n].Await("the node reports the fence", func() bool { return strings.Contains(c.call(n, "inspect"), "has fenced") })
		reported := time.Since(begun)
		if out := c.call(n, "health"); !strings.Contains(out, "DeviceLost") || !strings.Contains(out, "delete the pods") {
			r.Errorf("health of a fenced volume: %s", out)
		}
		c.fails(n, "stats", "has fenced")
		c.fails(n, "stage", "published at "+c.target())
		c.fails(n, "publish", "published at "+c.target())
		r.fence("rm", entry)
		if _, err := r.nodes[n].Try("sh", "-c", "echo y >> "+c.target()+"/log"); err == nil {
			r.Error("a fenced mount writes after the fence was lifted")
		}
		begun = time.Now()
		c.call(n, "unpublish")
		c.fails(n, "publish", "whose working directory is")
		r.nodes[n].Run("killall", "sleep")
		c.call(n, "publish") // as a kubelet does for the pod that replaces the former one
		removed := time.Since(begun)
		c.run(n, "echo z >> log && sync")
		c.detach(n)
		r.wantNothing(n)
		fmt.Printf("REPORT: cephfs: fence of %s: the writer failed after %.1f s, the node reported it after %.1f s, unpublish and the next publish took %.1f s\n", entry, failed.Seconds(), reported.Seconds(), removed.Seconds())
	}
}

// testTakeover: node 0 is disconnected with writes that are not synced, and
// fenced. Node 1 reads what was synced, and node 0 never writes again.
func (r *fsRig) testTakeover() {
	c := r.claim("takeover")
	c.attach(0)
	c.run(0, "echo synced > file && sync")
	instance, address := c.instance(0), cephnet.GuestAddress(0).String()
	r.nodes[0].Run("sh", "-c", "(exec >> "+c.target()+"/file; echo unsynced; sleep 1000) 2> /dev/null < /dev/null &")
	cephnet.Disconnect(r.nodes[0].Kernel, 0, true)
	begun := time.Now()
	r.fence("add", address)
	r.fence("add", instance)
	c.attach(1)
	if text := c.run(1, "cat file"); text != "synced" {
		r.Errorf("node 1 reads %q", text)
	}
	c.run(1, "echo taken > file && sync")
	taken := time.Since(begun)
	c.fails(0, "unstage", "still published", "-timeout", "4s")
	cephnet.Disconnect(r.nodes[0].Kernel, 0, false)
	r.nodes[0].Await("node 0 knows that it is fenced", func() bool { return strings.Contains(c.call(0, "inspect"), "has fenced") })
	if _, err := r.nodes[0].Try("sh", "-c", "echo late > "+c.target()+"/file"); err == nil {
		r.Error("node 0 writes after it was fenced")
	}
	r.fence("rm", address) // the instance stays fenced
	r.nodes[0].Run("killall", "sleep")
	c.detach(0)
	c.attach(0)
	for n := range r.nodes {
		if text := c.run(n, "cat file"); text != "taken" {
			r.Errorf("node %d reads %q", n, text)
		}
		c.detach(n)
		r.wantNothing(n)
	}
	fmt.Printf("REPORT: cephfs: takeover: the other node had written %.1f s after the fence began\n", taken.Seconds())
}

// testServer stops the metadata server. Calls answer within their bound, and all
// goes on when it is back.
func (r *fsRig) testServer() {
	const n = 0
	c := r.claim("server")
	gone := r.claim("gone")
	c.attach(n)
	gone.attach(n)
	gone.call(n, "unpublish")
	c.run(n, "echo before > file && sync")
	// Clients that end meanwhile do not return to the metadata server.
	testkit.Value(cluster.Command("config", "set", "mds", "mds_reconnect_timeout", "15"))(r)
	testkit.Must(r, cluster.StopMDS())
	begun := time.Now()
	if out := c.call(n, "inspect"); !strings.Contains(out, "unreachable") {
		r.Errorf("inspect: %s", out)
	}
	if out := c.call(n, "health"); !strings.Contains(out, "StorageUnreachable") {
		r.Errorf("health: %s", out)
	}
	c.fails(n, "stats", "for the Ceph cluster")
	gone.fails(n, "unstage", "Ceph cluster", "-timeout", "4s")
	fresh := &directory{fsRig: r, name: "fresh", path: "/volumes/" + group}
	fresh.fails(n, "stage", "", "-timeout", "4s")
	without := time.Since(begun)
	testkit.Must(r, cluster.StartMDS())
	active := time.Since(begun)
	if text := c.run(n, "cat file && echo after >> file && sync && cat file"); text != "before\nbefore\nafter" {
		r.Errorf("the file has %q", text)
	}
	gone.call(n, "unstage")
	c.detach(n)
	r.wantNothing(n)
	fmt.Printf("REPORT: cephfs: %.1f s of calls without a metadata server, which was active after %.1f s, all back after %.1f s\n", without.Seconds(), active.Seconds(), time.Since(begun).Seconds())
}
