package rbd

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

func addrPort(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func (r *rig) testTakeovers() {
	for round := range takeovers() {
		r.takeover(fmt.Sprintf("takeover%d", round))
	}
}

// takeover: node 0 writes and is disconnected, its client is fenced, and node 1 takes
// the image. When node 0 returns, none of its writes is visible, also after its
// address was unfenced.
func (r *rig) takeover(image string) {
	r.image(image)
	old := r.attach(0, image)
	instance := r.nodes[0].Read(path.Join("/sys/bus/rbd/devices", strings.TrimPrefix(old, "/dev/rbd"), "client_addr"))
	r.isWatcher(image, instance)
	w := r.writer(0, old)
	r.awaitWrites(0, w, 100)
	r.disconnect(0, true)
	address := guestAddress(0).String()
	begun := time.Now()
	r.blocklist("add", address)
	r.blocklist("add", instance, "157680000")
	r.wantBlocked(address+":0/0", instance)
	count := acknowledged(w)

	device := r.attach(1, image)
	r.check(1, device, 1, count)
	const seed, beyond = 2, 64
	r.run(1, "-seed", fmt.Sprint(seed), "-count", fmt.Sprint(count+beyond), device)
	taken := time.Since(begun)

	r.disconnect(0, false)
	select {
	case <-w.Done():
		r.nodes[0].WantErrno(w.Err(), syscall.EIO)
	case <-time.After(2 * time.Minute):
		r.Fatal("the fenced writer did not fail")
	}
	failed := time.Since(begun)
	r.check(1, device, seed, count+beyond)
	r.wantDead(old)

	// The address returns to use while the old device still exists.
	r.blocklist("rm", address)
	r.wantBlocked(instance)
	r.wantDead(old)
	r.check(1, device, seed, count+beyond)
	r.detachDead(image)
	again := r.attach(0, image) // a new client
	r.check(0, again, seed, count+beyond)
	r.detach(0, image)
	r.detach(1, image)
	fmt.Printf("REPORT: rbd: takeover after %d acknowledged writes: the other node had written everything after %.1f s, the fenced writer failed after %.1f s\n",
		count, taken.Seconds(), failed.Seconds())
}

// wantDead: neither writes nor reads of a fenced device succeed.
func (r *rig) wantDead(device string) {
	_, err := r.nodes[0].Try("writer", "-seed", "3", "-count", "1", device)
	r.nodes[0].WantErrno(err, syscall.EIO)
	_, err = r.nodes[0].Try("dd", "if="+device, "of=/dev/null", "bs=4096", "count=1", "iflag=direct")
	r.nodes[0].WantErrno(err, syscall.EIO)
}

// detachDead detaches a fenced device: at most the first call fails, with the
// loss of data that was not written.
func (r *rig) detachDead(image string) {
	if _, err := r.client(0, "detach", image); err != nil {
		r.detach(0, image)
	}
}

func (r *rig) blocklist(call string, args ...string) {
	testkit.Value(cluster.Command(append([]string{"osd", "blocklist", call}, args...)...))(r)
}

func (r *rig) wantBlocked(want ...string) {
	out := testkit.Value(cluster.Command("osd", "dump", "--format", "json"))(r)
	var dump struct{ Blocklist map[string]string }
	testkit.Must(r, json.Unmarshal([]byte(out), &dump))
	for _, w := range want {
		if dump.Blocklist[w] == "" {
			r.Errorf("%s is not on the blocklist: %v", w, dump.Blocklist)
		}
	}
}

// isWatcher: the cluster knows the client instance that the kernel shows.
func (r *rig) isWatcher(image, instance string) {
	out := testkit.Value(cluster.RBD("status", "--format", "json", pool+"/"+image))(r)
	var status struct{ Watchers []struct{ Address string } }
	testkit.Must(r, json.Unmarshal([]byte(out), &status))
	var all []string
	for _, w := range status.Watchers {
		all = append(all, w.Address)
	}
	if !slices.Contains(all, instance) {
		r.Errorf("the watchers are %v, the kernel's client is %s", all, instance)
	}
}
