package kubernetes

import (
	"strings"
)

// fullPool fills the added node's pool by writing to a thin volume. The writer
// gets an error, other volumes on the node stay readable, new volumes are placed
// on the other node, and after the deletion of the large volume the node's other
// volumes can be written by new pods.
func (s *twoNodes) fullPool() {
	here := on(s.added.Name)
	s.claim("neighbour", claim{class: "pair-ext4", size: "64Mi"})
	s.run("neighbour", pod{mounts: map[string]string{"/data": "neighbour"}, change: here})
	s.exec("neighbour", "echo kept >/data/a; sync")
	s.claim("large", claim{class: "pair-ext4", size: "3Gi"})
	s.run("large", pod{mounts: map[string]string{"/data": "large"}, change: here})

	said := s.exec("large", "dd if=/dev/zero of=/data/fill bs=1M count=2000 conv=fsync 2>&1 && echo written || true")
	if strings.Contains(said, "written") {
		s.Errorf("2000 MiB were written to a pool of 1 GiB: %s", said)
	}
	s.Logf("the writer gets: %s", said)
	s.reads("neighbour", "cat /data/a", "kept")

	s.claim("elsewhere", claim{class: "pair-thick", size: "300Mi"})
	s.run("elsewhere", pod{mounts: map[string]string{"/data": "elsewhere"}, change: anywhere})
	if node := s.nodeOf("elsewhere"); node == s.added.Name {
		s.Errorf("a thick volume was placed on %s, whose pool is full", node)
	}

	volume := s.bound("large")
	s.drop("large")
	s.dropClaim("large")
	s.awaitDeleted(s.fileOn(s.added.Name, fileOf(volume)))
	// Its file system is read-only if it wrote its journal to the full pool.
	s.drop("neighbour")
	s.unstaged(s.fileOn(s.added.Name, fileOf(s.bound("neighbour"))))
	s.run("neighbour", pod{mounts: map[string]string{"/data": "neighbour"}, change: here})
	s.exec("neighbour", "dd if=/dev/zero of=/data/b bs=1M count=16 conv=fsync 2>/dev/null")
	s.reads("neighbour", "cat /data/a", "kept")
	for _, name := range []string{"neighbour", "elsewhere"} {
		s.drop(name)
		s.dropClaim(name)
	}
}
