package rig

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	Main(m, map[string]func() int{"leaver": leaver, "listener": listener}, func() error { return nil })
}

var (
	server4 = netip.MustParsePrefix("10.9.0.2/16")
	server6 = netip.MustParsePrefix("fd09::2/48")
	client4 = netip.MustParsePrefix("10.9.1.7/16")
	client6 = netip.MustParsePrefix("fd09:0:0:1::7/48")
)

// listener accepts connections and closes them.
func listener() int {
	l, err := net.Listen("tcp", ":3000")
	for err == nil {
		var conn net.Conn
		if conn, err = l.Accept(); err == nil {
			_ = conn.Close()
		}
	}
	return 1
}

// listen starts a listener on the machine.
func listen(t *testing.T, m *Machine) {
	t.Helper()
	argv, env, err := As("listener")
	testkit.Must(t, err)
	p := m.Start("listener", env, argv...)
	if err := m.WaitFor(t.Context(), netip.MustParseAddrPort("127.0.0.1:3000")); err != nil {
		t.Fatalf("%v\n%s", err, p.Log())
	}
}

func TestHostsConnectOverTheSwitch(t *testing.T) {
	network, machine, client := NewNetwork(t), NewMachine(t), NewNamespace(t)
	network.Attach(t, machine.Namespace, server4, server6)
	cable := network.Attach(t, client, client4, client6)
	listen(t, machine)
	for _, to := range []netip.Addr{server4.Addr(), server6.Addr()} {
		conn := testkit.Value(client.Dial(t.Context(), netip.AddrPortFrom(to, 3000), netip.Addr{}))(t)
		if from := conn.LocalAddr().String(); !strings.Contains(from, "9.1.7") && !strings.Contains(from, "fd09:0:0:1::7") {
			t.Errorf("the client calls from %s", from)
		}
		_ = conn.Close()
	}
	testkit.Must(t, cable.Disconnect(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if conn, err := client.Dial(ctx, netip.AddrPortFrom(server4.Addr(), 3000), netip.Addr{}); err == nil {
		_ = conn.Close()
		t.Error("a disconnected cable still carries packets")
	}
	testkit.Must(t, cable.Reconnect(t.Context()))
	if err := client.WaitFor(t.Context(), netip.AddrPortFrom(server4.Addr(), 3000)); err != nil {
		t.Error(err)
	}
}

func TestMachineHasItsOwnProcesses(t *testing.T) {
	m := NewMachine(t)
	p := m.Start("sleep", nil, "sleep", "1000")
	found, err := m.Find("1000")
	if err != nil || len(found) != 1 || found[0].PID != p.PID {
		t.Fatalf("Find = %v, %v", found, err)
	}
	testkit.Must(t, p.Kill())
	if status, err := p.Wait(30 * time.Second); err != nil || status.Signal() != unix.SIGKILL {
		t.Errorf("ended with %#x, %v", status, err)
	}
	shell := m.Start("sh", nil, "/bin/sh", "-c", "echo said; sleep 2000 & exit 3")
	if status, err := shell.Wait(30 * time.Second); err != nil || status.ExitStatus() != 3 || shell.Log() != "said\n" {
		t.Errorf("ended with %#x, %v, and said %q", status, err, shell.Log())
	}
	var orphan []Listed
	for deadline := time.Now().Add(30 * time.Second); len(orphan) == 0 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) { // before exec it is still the shell
		orphan = testkit.Value(m.Find("2000"))(t)
	}
	if len(orphan) != 1 {
		t.Fatalf("Find = %v", orphan)
	}
	if err := m.KillAndWait(t.Context(), orphan[0].PID); err != nil {
		t.Error(err)
	}
}

func TestArgumentsOfNewProcesses(t *testing.T) {
	for range 300 { // every tenth has no arguments yet
		pid := testkit.Value(syscall.ForkExec("/bin/sleep", []string{"sleep", "1000"}, &syscall.ProcAttr{}))(t)
		args := arguments(pid)
		if !slices.Equal(args, []string{"sleep", "1000"}) {
			t.Errorf("process %d has the arguments %q", pid, args)
		}
		_ = unix.Kill(pid, unix.SIGKILL)
		for deadline := time.Now().Add(30 * time.Second); arguments(pid) != nil; {
			if time.Now().After(deadline) {
				t.Fatalf("process %d is killed and has arguments", pid) // a zombie has none
			}
		}
		if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
			t.Error(err)
		}
	}
}

func TestRebootKeepsFilesOnly(t *testing.T) {
	m := NewMachine(t)
	testkit.Must(t, os.WriteFile(filepath.Join(m.Dir, "kept"), []byte("x"), 0o600))
	m.MustRun(t, "nft", "add", "table", "inet", "gone")
	p := m.Start("sleep", nil, "sleep", "1000")
	m.Reboot()
	<-p.Done()
	if rules := m.MustRun(t, "nft", "list", "ruleset"); rules != "" {
		t.Errorf("after the reboot the ruleset is %s", rules)
	}
	if found, err := m.Find("1000"); err != nil || len(found) != 0 {
		t.Errorf("after the reboot these run: %v, %v", found, err)
	}
	if _, err := os.Stat(filepath.Join(m.Dir, "kept")); err != nil {
		t.Error(err)
	}
}

// A machine does not keep mounts of other tests.
func TestMachineLeavesLoopDevices(t *testing.T) {
	dir := t.TempDir()
	pool := filepath.Join(dir, "pool")
	driver.MountImage(t, pool, mkfs.Ext4, 16<<20)
	m := NewMachine(t)
	p := m.Start("cat", nil, "/bin/cat", "/proc/self/mounts")
	if _, err := p.Wait(30 * time.Second); err != nil || !strings.Contains(p.Log(), "proc") {
		t.Fatalf("%v: %s", err, p.Log())
	}
	if strings.Contains(p.Log(), pool) {
		t.Errorf("the machine has %s", p.Log())
	}
	if _, err := os.Stat(filepath.Join(pool, "lost+found")); err != nil {
		t.Errorf("the mount itself is gone: %v", err)
	}
}

// leaver is a test binary that leaves a process on a machine, prints the path
// of its files, and waits to be killed.
func leaver() int {
	leave, err := scratch()
	if err != nil || leave == nil {
		return 1
	}
	m := &Machine{Dir: os.Getenv("TMPDIR")}
	if err := m.boot(); err != nil {
		return 1
	}
	if _, err := m.Launch("sleep", nil, "sleep", "3000"); err != nil {
		return 1
	}
	_, _ = os.Stdout.WriteString(m.Dir + "\n")
	select {}
}

// A killed test leaves neither a process nor a file.
func TestKilledTestLeavesNothing(t *testing.T) {
	argv, env, err := As("leaver")
	testkit.Must(t, err)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	testkit.Must(t, err)
	var line [4096]byte
	n, err := out.Read(line[:])
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	dir := strings.TrimSpace(string(line[:n]))
	if err != nil || dir == "" {
		t.Fatalf("the other test printed %q, %v", dir, err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		_, err := os.Stat(dir)
		left := processesOf(t, dir)
		if os.IsNotExist(err) && len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left over: %s (%v), processes %v", dir, err, left)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// processesOf lists the processes that have a directory in their environment.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	environs := testkit.Value(filepath.Glob("/proc/[0-9]*/environ"))(t)
	var left []string
	for _, e := range environs {
		if data, err := os.ReadFile(e); err == nil && strings.Contains(string(data), dir) {
			left = append(left, e)
		}
	}
	return left
}
