package nvme

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
	"github.com/cleatproject/cleat/test/vm/nvmetcp"
)

// newKey returns a DH-HMAC-CHAP key in the form of NVMe TP 8006: the secret and
// its CRC-32, without a transformation.
func newKey() string {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret)
	return "DHHC-1:00:" + base64.StdEncoding.EncodeToString(binary.LittleEndian.AppendUint32(secret, crc32.ChecksumIEEE(secret))) + ":"
}

// testKeys: a volume with DH-HMAC-CHAP is attached with its key only, and not at
// all by a kernel that ignores keys.
func (r *rig) testKeys() {
	// Keys are the host's, for all subsystems, so this host has another name.
	host := nvmetcp.HostOf("5b6a1f52-0d3c-4c53-8f6e-00000000000c").NQN
	key := newKey()
	for name, text := range map[string]string{"right": key, "wrong": newKey(), "text": "secret"} {
		testkit.Must(r, r.Guest.WriteFile(r.Context(), keys+"/"+name, []byte(text+"\n"), 0o600))
	}
	s := r.subsystem("keys", []string{host}, r.medium("keys", 32*mib))
	with := func(name string) *claim {
		l := locator(s, s.UUID)
		l.HostNQN, l.DHChapKey = host, name
		return r.claim("key-"+name, "ext4", l)
	}
	r.wantRefused(with("nosuch"), codes.FailedPrecondition, "nosuch", "no such file")
	r.wantRefused(with("text"), codes.FailedPrecondition, "is not a DH-HMAC-CHAP key")
	r.wantNothing()
	if r.source == image.Stable {
		r.wantRefused(with("right"), codes.Unimplemented, "this kernel has ignored the DH-HMAC-CHAP key")
	} else {
		r.target.RequireKey(host, key)
		r.wantRejected(with("wrong"))
		r.wantRefused(with(""), codes.Unauthenticated, "the target demands DH-HMAC-CHAP")
		r.wantNothing()
		right := with("right")
		right.attach()
		right.write("authenticated")
		r.wantNoKey(key)
		right.detach()
	}
	r.wantNothing()
	r.delete("keys")
}

// wantRejected: the target rejects the key. It closes the connection after its
// answer, and half the time Linux has not read that and waits for the time limit
// of a command, which is a minute by default.
func (r *rig) wantRejected(c *claim) {
	const limit = "/sys/module/nvme_core/parameters/admin_timeout"
	before := r.Read(limit)
	r.Write(limit, "3")
	defer r.Write(limit, before)
	var err error
	for status.Code(err) != codes.Unauthenticated {
		if err = c.stage(); status.Code(err) != codes.Unavailable && status.Code(err) != codes.Unauthenticated {
			r.Fatalf("stage with a wrong key: %v", err)
		}
	}
	r.wantError(err, "rejects the other's DH-HMAC-CHAP key")
}

// wantNoKey: the driver's files and log do not have the key.
func (r *rig) wantNoKey(key string) {
	if out, err := r.Try("grep", "-r", "-l", "-F", key, nodeservice.State); err == nil {
		r.Errorf("the key is in %s", out)
	}
	if strings.Contains(r.Process.Log(), key) {
		r.Error("the key is in the log of the driver")
	}
}
