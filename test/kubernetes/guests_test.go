package kubernetes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/test/kubernetes/cluster"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/kernel"
)

// guest is a node of the cluster in a guest, with kubelet, containerd and the
// kernel's clients. Its disk has all that a node keeps.
type guest struct {
	*cluster.Machine
	s      *space
	number int
	tap    vm.Tap
	disk   vm.File
	slots  *vm.Slots
	uuid   string // of the hardware
	kernel *kernel.Kernel
}

// prepareGuests downloads what guests are made of.
func prepareGuests(ctx context.Context) error {
	return vm.Prepare(ctx, guestSpec(), func(format string, args ...any) { fmt.Printf(format+"\n", args...) })
}

func guestSpec() vm.Spec {
	return vm.Spec{
		Kernel: image.Backports, Memory: 1536, Modules: []string{"ext4", "overlay", "rbd"}, Tools: image.Filesystems(),
		BootTime: 10 * time.Minute, Lifetime: 2 * time.Hour,
	}
}

// guestArchives are images that pods in guests use.
func guestArchives() []string {
	return []string{filepath.Join(testCluster.Dir, "cleat.tar"), filepath.Join(testCluster.Dir, loggerArchive)}
}

// newGuests boots guests, which join the cluster as nodes.
func newGuests(s *space, count int) []*guest {
	s.Helper()
	slots := vm.ReserveSlots(s, count)
	var all []*guest
	for i := range count {
		m := &guest{Machine: testkit.Value(testCluster.AddMachine())(s), s: s, number: i, slots: slots, uuid: uuid.NewString()}
		m.tap = vm.Tap{Interface: m.Name, N: i}
		all = append(all, m)
	}
	stage := filepath.Join(testCluster.Dir, "guests")
	testkit.Must(s, stageDisk(stage, all))
	for _, m := range all {
		path := filepath.Join(stage, m.Name)
		out, err := exec.CommandContext(s.Context(), "mkfs.ext4", "-q", "-d", filepath.Join(stage, "root"), path, "6G").CombinedOutput()
		if err != nil {
			s.Fatalf("create the disk of %s: %v: %s", m.Name, err, out)
		}
		m.disk = vm.File{Path: path}
	}
	testkit.Must(s, os.RemoveAll(filepath.Join(stage, "root")))
	s.Cleanup(func() {
		for _, m := range all {
			if _, err := testCluster.Kubectl(context.Background(), "", "delete", "node", m.Name, "--ignore-not-found"); err != nil {
				s.Error(err)
			}
		}
	})
	s.Cleanup(func() { // the guests of the last boot, after all that needs them
		for _, m := range all {
			m.end()
		}
	})
	var wait sync.WaitGroup
	for _, m := range all {
		wait.Go(func() { m.boot(true) })
	}
	wait.Wait()
	if s.Failed() {
		s.FailNow()
	}
	return all
}

// stageDisk writes what is on the disks of all machines.
func stageDisk(stage string, all []*guest) error {
	root := filepath.Join(stage, "root")
	copies := map[string]string{} // by name below root
	for _, program := range []string{"/usr/bin/containerd", "/usr/bin/containerd-shim-runc-v2", "/usr/bin/ctr", "/usr/sbin/runc", testCluster.Programs.Path("kubelet")} {
		copies["bin/"+filepath.Base(program)] = program
	}
	libs, err := filepath.Glob("/usr/lib/*/libseccomp.so.2")
	if err != nil || len(libs) != 1 {
		return fmt.Errorf("the library of runc: %q, %w", libs, err)
	}
	copies["bin/libseccomp.so.2"] = libs[0]
	for _, archive := range append(guestArchives(), all[0].PauseImage) {
		copies["images/"+filepath.Base(archive)] = archive
	}
	for _, m := range all {
		for _, file := range []string{m.Name + ".conf", m.Name + ".crt", m.Name + ".key", m.Name + "-server.crt", m.Name + "-server.key", "ca.crt"} {
			copies["keys/"+file] = filepath.Join(m.Keys, file)
		}
		if err := os.CopyFS(filepath.Join(root, filepath.Base(m.State)), os.DirFS(m.State)); err != nil {
			return err
		}
	}
	for name, from := range copies {
		to := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if out, err := exec.Command("cp", from, to).CombinedOutput(); err != nil {
			return fmt.Errorf("copy %s: %w: %s", from, err, out)
		}
	}
	return nil
}

// boot starts the guest, and returns when the node is ready.
func (m *guest) boot(first bool) {
	m.s.Helper()
	began := time.Now()
	spec := guestSpec()
	spec.Name, spec.Slots, spec.Disks = m.Name, m.slots, []vm.Disk{m.disk}
	spec.Devices = append(m.tap.Args(), "-uuid", m.uuid)
	g, err := vm.Launch(m.s.Context(), spec, m.s.Logf)
	if err != nil {
		m.s.Error(err)
		return
	}
	m.kernel = &kernel.Kernel{TB: m.s, Guest: g}
	if err := m.start(first); err != nil {
		m.s.Errorf("start %s: %v", m.Name, err)
		return
	}
	m.s.Logf("%s: kubelet started after %.1f s", m.Name, time.Since(began).Seconds())
	if err := m.Ready(m.s.Context(), began); err != nil {
		m.s.Error(err)
		return
	}
	m.s.Logf("%s is ready after %.1f s", m.Name, time.Since(began).Seconds())
}

// setUp is what an init system does.
const setUp = `set -e
hostname "$NAME"
echo "$MACHINE" > /etc/machine-id
: > /etc/resolv.conf
mkdir -p "$DIR"
mount -t ext4 /dev/vda "$DIR"
cp "$DIR/bin/libseccomp.so.2" /usr/lib/x86_64-linux-gnu/
mkdir -p "$DIR/logs"
echo "$BINDS" | while read target source; do
	mkdir -p "$target" "$STATE/$source"
	mount --bind "$STATE/$source" "$target"
done
for dir in $VOLATILE; do mkdir -p $dir; mount -t tmpfs tmpfs $dir; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
group=/sys/fs/cgroup
for part in '' $(echo "$CGROUP" | tr / ' '); do
	group=$group/$part
	mkdir -p $group
	for controller in $(cat $group/cgroup.controllers); do echo +$controller > $group/cgroup.subtree_control; done
done
for dev in /sys/class/net/*; do
	if [ "$(cat $dev/address)" = "$MAC" ]; then dev=${dev##*/}; break; fi
done
ip address add $ADDRESS/32 dev $dev
ip link set $dev up
ip route add $CONTROL dev $dev
ip route add $SERVICES via $CONTROL dev $dev
ping -c 1 -W 20 $CONTROL > /dev/null
# Containers need another root than the initramfs, which cannot be exchanged.
mkdir /node
mount --rbind / /node
mount --make-rprivate /
cd /node
mount --move . /
nsenter -t 1 -m mount --make-rshared /
`

func (m *guest) start(first bool) error {
	if err := m.Link(m.tap.Interface); err != nil {
		return err
	}
	ctx, g := m.s.Context(), m.kernel.Guest
	var binds []string
	for target, source := range m.Binds {
		binds = append(binds, target+" "+source)
	}
	env := []string{"NAME=" + m.Name, "MACHINE=" + strings.ReplaceAll(m.uuid, "-", ""), "DIR=" + m.Dir, "STATE=" + m.State, "BINDS=" + strings.Join(binds, "\n"),
		"VOLATILE=" + strings.Join(m.Volatile, " "), "CGROUP=" + m.Cgroup, "MAC=" + m.tap.MAC(), "ADDRESS=" + m.Address.String(), "CONTROL=" + m.Control, "SERVICES=" + m.Services}
	if _, err := g.Exec(ctx, vm.Command{Argv: []string{"sh", "-c", setUp}, Env: env}); err != nil {
		return err
	}
	if err := m.daemon(m.Runtime...); err != nil {
		return err
	}
	if err := poll(ctx, func(ctx context.Context) error { return m.ctr(ctx, "version") }); err != nil {
		return err
	}
	if first {
		for _, archive := range append(guestArchives(), m.PauseImage) {
			if err := m.ctr(ctx, "-n", "k8s.io", "images", "import", "--all-platforms", filepath.Join(m.Dir, "images", filepath.Base(archive))); err != nil {
				return err
			}
		}
	}
	return m.daemon(m.Kubelet...)
}

func (m *guest) path() string { return "PATH=" + m.Dir + "/bin:/usr/sbin:/usr/bin" }

// daemon starts a program until the guest ends.
func (m *guest) daemon(argv ...string) error {
	_, err := m.kernel.Guest.Start(m.s.Context(), vm.Command{Env: []string{m.path()},
		Argv: append([]string{"nsenter", "-t", "1", "-m", "sh", "-c", `exec "$0" "$@" >> ` + m.Dir + "/logs/" + argv[0] + " 2>&1"}, argv...)})
	return err
}

func (m *guest) ctr(ctx context.Context, args ...string) error {
	_, err := m.kernel.Guest.Exec(ctx, vm.Command{Argv: append([]string{"nsenter", "-t", "1", "-m", "sh", "-c", `exec ctr "$@"`, "ctr", "-a", m.Socket}, args...), Env: []string{m.path()}})
	return err
}

// end ends the guest of the last boot.
func (m *guest) end() {
	if m.kernel == nil {
		return
	}
	if m.s.Failed() {
		m.report()
	}
	if err := m.kernel.Guest.Close(); err != nil {
		m.s.Error(err)
	}
}

// report logs why a node does not work.
func (m *guest) report() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := m.kernel.Guest.Run(ctx, "sh", "-c", fmt.Sprintf("tail -n 25 %s/logs/*; dmesg | tail -n 30; tail -n 15 /var/log/pods/*/*/*.log", m.Dir))
	m.s.Logf("%s (%v):\n%s", m.Name, err, out)
}

// disconnect takes the machine off the network, which it does not notice.
func (m *guest) disconnect() {
	m.s.Helper()
	if out, err := exec.CommandContext(m.s.Context(), "ip", "link", "set", m.tap.Interface, "down").CombinedOutput(); err != nil {
		m.s.Fatalf("disconnect %s: %v: %s", m.Name, err, out)
	}
}

// connect undoes disconnect.
func (m *guest) connect() {
	m.s.Helper()
	testkit.Must(m.s, m.Link(m.tap.Interface))
}

// reboot is the reset button: nothing is shut down.
func (m *guest) reboot() {
	m.s.Helper()
	testkit.Must(m.s, m.kernel.Guest.Close())
	m.boot(false)
	if m.s.Failed() {
		m.s.FailNow()
	}
}
