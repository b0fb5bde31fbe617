package nvme

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/nvmetcp"
)

// newPSK returns a key of TLS in its interchange format.
func newPSK() string {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret)
	return "NVMeTLSkey-1:01:" + base64.StdEncoding.EncodeToString(binary.LittleEndian.AppendUint32(secret, crc32.ChecksumIEEE(secret))) + ":"
}

// testTLS: a volume with TLS is connected with its key in the kernel, or not at
// all. The handshake is done by tlshd, which the guests do not have.
func (r *rig) testTLS() {
	host := nvmetcp.HostOf("5b6a1f52-0d3c-4c53-8f6e-00000000000d").NQN
	psk := newPSK()
	for name, text := range map[string]string{"psk": psk, "damaged": strings.Replace(newPSK(), "-1:01:", "-1:01:AAAA", 1), "other": newKey()} {
		testkit.Must(r, r.Guest.WriteFile(r.Context(), keys+"/"+name, []byte(text+"\n"), 0o600))
	}
	s := r.subsystem("tls", []string{host}, r.medium("tls", 32*mib), r.medium("tls-plain", 32*mib))
	with := func(name, namespace string) *claim {
		l := locator(s, namespace)
		l.HostNQN, l.TLSKey = host, name
		return r.claim("tls-"+name, "ext4", l)
	}
	r.wantRefused(with("nosuch", s.UUID), codes.FailedPrecondition, "nosuch", "no such file")
	r.wantRefused(with("damaged", s.UUID), codes.FailedPrecondition, "the file damaged of "+keys+" has a TLS key of 35 bytes")
	r.wantRefused(with("other", s.UUID), codes.FailedPrecondition, "the file other of "+keys+" is not a TLS key")
	r.wantNothing()

	plain := with("", s.More[0].UUID)
	plain.attach()
	r.wantRefused(with("psk", s.UUID), codes.FailedPrecondition, "is connected without")
	plain.detach()
	r.wantNothing()
	if r.source == image.Stable {
		r.wantRefused(with("psk", s.UUID), codes.Unimplemented, "CONFIG_NVME_TCP_TLS", "Linux 6.7")
	} else {
		r.testTLSKey(with("psk", s.UUID), host, s.NQN, psk)
	}
	r.wantNothing()
	r.delete("tls")
	r.Run("rm", media+"/tls-plain")
}

// testTLSKey: the kernel takes the key, and misses tlshd. The key is removed when
// the connection is.
func (r *rig) testTLSKey(c *claim, host, nqn, psk string) {
	begun := time.Now()
	r.wantRefused(c, codes.FailedPrecondition, "start tlshd of ktls-utils")
	fmt.Printf("REPORT: nvme %s: stage without tlshd failed after %.1f s\n", r.source, time.Since(begun).Seconds())
	r.wantNoTLSKey()

	// The process is killed before it removes the key.
	r.Stop()
	r.Start(crash("nvme.disconnected"))
	if err := c.stage(); err == nil {
		r.Fatal("stage without tlshd succeeded")
	}
	r.AwaitEnd()
	stored := r.Run("cat", "/proc/keys")
	if want := fmt.Sprintf(" psk       NVMe0R01 %s %s: 32", host, nqn); !strings.Contains(stored, want) {
		r.Errorf("the kernel's keys do not have %q:\n%s", want, stored)
	}
	r.wantNoKey(psk)
	r.Start()
	r.wantNothing()
	r.wantNoTLSKey()
}

// wantNoTLSKey waits: a worker of the kernel removes the key that was unlinked.
func (r *rig) wantNoTLSKey() {
	r.Helper()
	r.Await("the kernel has no TLS key", func() bool { return r.Run("sh", "-c", "grep -c ' psk ' /proc/keys || true") == "0" })
}
