package cephtest

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

// configTemplate has the settings that all clusters share. Short timers of the
// monitor make commands answer in 15 to 30 ms. There is no "public network":
// Ceph finds no address of 127.0.0.0/8 in one.
const configTemplate = `[global]
fsid = %[2]s
mon host = [v2:%[4]s,v1:%[5]s]
public addr = %[3]s
cluster addr = %[3]s
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
auth allow insecure global id reclaim = false
keyring = %[1]s/keyring.$name
run dir = %[1]s/run
admin socket = %[1]s/run/$cluster-$name.$pid.asok
pid file = %[1]s/run/$name.pid
log file = %[1]s/log/$name
crash dir = %[1]s/crash
ms bind port min = 16800
ms bind port max = 16899
mon allow pool size one = true
mon warn on pool no redundancy = false
mon allow pool delete = true
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon data avail warn = 1
mon data avail crit = 1
mgr stats period = 1

[mon]
mon data = %[1]s/mon
keyring = %[1]s/keyring.mon.
mgr initial modules = iostat
paxos propose interval = 0.02
paxos min wait = 0.01
mon cluster log file = %[1]s/log/cluster

[mgr]
mgr data = %[1]s/mgr
mgr tick period = 1

[osd]
osd data = %[1]s/osd
osd objectstore = bluestore
osd class update on start = false
bluestore block size = %[6]d
bluestore fsck on mount = false
bluestore cache autotune = false
bluestore cache size = 67108864
osd memory target = 939524096
osd scrub begin hour = 0
osd scrub end hour = 0

[mds]
mds data = %[1]s/mds
mds cache memory limit = 134217728
mds beacon interval = 1

[client]
pid file =
log to file = false
`

// users are the users of the daemons and their capabilities.
var users = [...]struct{ name, caps string }{
	{"mon.", `mon = "allow *"`},
	{"client.admin", `mon = "allow *", mgr = "allow *", osd = "allow *", mds = "allow *"`},
	{"mgr.x", `mon = "allow profile mgr", osd = "allow *", mds = "allow *"`},
	{"osd.0", `mon = "allow profile osd", mgr = "allow profile osd", osd = "allow *"`},
	{"mds.a", `mon = "allow profile mds", mgr = "allow profile mds", osd = "allow *", mds = "allow *"`},
}

// configure writes ceph.conf, the keyrings, and one keyring of all users, with
// which the monitor is created.
func (c *Cluster) configure() error {
	for _, d := range []string{"run", "log", "crash", "mon", "mgr", "osd", "mds"} {
		if err := os.MkdirAll(c.path(d), 0o700); err != nil {
			return err
		}
	}
	var err error
	if c.ports, err = freePorts(c.opts.Addr.String()); err != nil {
		return err
	}
	config := fmt.Sprintf(configTemplate, c.dir, c.fsid, c.opts.Addr, c.monitor(0), c.monitor(1), c.opts.BlockSize)
	if err := os.WriteFile(c.Conf(), []byte(config), 0o600); err != nil {
		return err
	}
	var seed strings.Builder
	for _, u := range users {
		key, err := c.newKey()
		if err != nil {
			return err
		}
		if u.name == "client.admin" {
			c.adminKey = key
		}
		if err := os.WriteFile(c.path("keyring."+u.name), fmt.Appendf(nil, "[%s]\nkey = %s\n", u.name, key), 0o600); err != nil {
			return err
		}
		fmt.Fprintf(&seed, "[%s]\nkey = %s\n", u.name, key)
		for grant := range strings.SplitSeq(u.caps, ", ") {
			fmt.Fprintf(&seed, "caps %s\n", grant)
		}
	}
	return os.WriteFile(c.path("seed"), []byte(seed.String()), 0o600)
}

// newKey returns a random cephx key of the type that this release of Ceph
// prefers: aes, from 20.2.4 aes256k.
func (c *Cluster) newKey() (string, error) {
	key, err := c.output("ceph-authtool", "--gen-print-key")
	return strings.TrimSpace(key), err
}

// freePorts returns two ports that nothing uses now. They are outside the range
// from which the kernel takes ports of outgoing connections, so that a monitor
// that restarts finds its own free.
func freePorts(addr string) (ports [2]int, err error) {
	var random [2]byte
	for i := 0; i < len(ports); {
		_, _ = rand.Read(random[:]) // never fails
		port := 17000 + int(binary.LittleEndian.Uint16(random[:]))%15000
		l, listenErr := net.Listen("tcp", net.JoinHostPort(addr, fmt.Sprint(port)))
		if listenErr != nil {
			if !errors.Is(listenErr, unix.EADDRINUSE) {
				return ports, listenErr
			}
			continue
		}
		_ = l.Close()
		if slices.Contains(ports[:i], port) {
			continue
		}
		ports[i] = port
		i++
	}
	return ports, nil
}

func (c *Cluster) monitor(protocol int) string {
	return net.JoinHostPort(c.opts.Addr.String(), fmt.Sprint(c.ports[protocol]))
}

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

// environ is the environment without settings for Ceph of the caller.
func (c *Cluster) environ() []string {
	return append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CEPH_") }), "CEPH_CONF="+c.Conf())
}

// launch starts a daemon, in the foreground.
func (c *Cluster) launch(name string) error {
	kind, id, _ := strings.Cut(name, ".")
	cmd := exec.Command("ceph-"+kind, "-f", "-i", id, "-c", c.Conf())
	cmd.Dir = "/" // as systemd: Debian's 20.2.4 finds the OSD's classes relative to it
	cmd.Env = c.environ()
	out, err := os.OpenFile(c.path("log", name+".output"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	p, err := testkit.Launch(cmd)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.daemons[name] = p
	return nil
}

func (c *Cluster) kill(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.daemons[name].Kill()
}
