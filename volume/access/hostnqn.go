package access

import (
	"crypto/sha1"
	"fmt"
)

const uuidNQN = "nqn.2014-08.org.nvmexpress:uuid:"

// nodes is the name space of host NQNs; drawn once, and never to change, since
// access lists of targets hold what follows from it.
var nodes = [16]byte{0x5d, 0x0e, 0x6b, 0x1c, 0x93, 0x4f, 0x4a, 0x27, 0xb8, 0x61, 0x2e, 0xc4, 0x70, 0x9a, 0xd3, 0x58}

// HostNQN is the NQN of a node that has none of its own: of the form that the
// NVMe specification keeps for UUIDs, the same at every call, another for
// every name. Node names of two clusters that share a target must differ; put
// the cluster in front ("east/node-1").
func HostNQN(node string) string { return uuidNQN + nameUUID(node) }

// nameUUID is a UUID of version 5 (RFC 9562, section 5.5).
func nameUUID(name string) string {
	h := sha1.New()
	h.Write(nodes[:])
	h.Write([]byte(name))
	u := h.Sum(nil)[:16]
	u[6], u[8] = u[6]&0x0f|0x50, u[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
