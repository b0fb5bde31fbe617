// Command agent is the first process of a test guest. Process 1 prepares the
// guest, starts a second agent process that serves the host, and then only
// reaps orphans, so the second process can wait for its own children.
package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/vm/wire"
)

// environment is the environment of every process in the guest.
func environment() []string {
	return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C", "TMPDIR=/tmp"}
}

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "agent:", serve())
		os.Exit(1)
	}
	err := prepare()
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent: guest setup failed:", err)
	}
	fmt.Fprintln(os.Stderr, "agent: ended:", supervise(err))
	powerOff()
}

// supervise runs the serving process and reaps orphans until that process
// exits. fault is reported to the host instead of serving.
func supervise(fault error) error {
	env := environment()
	if fault != nil {
		env = append(env, faultVariable+"="+fault.Error())
	}
	server, err := os.StartProcess("/proc/self/exe", []string{"agent"}, &os.ProcAttr{
		Dir: "/", Env: env, Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		return fmt.Errorf("start the serving process: %w", err)
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait for processes: %w", err)
		case pid == server.Pid:
			return fmt.Errorf("the serving process ended with %#x", status)
		}
	}
}

// faultVariable makes the serving process report a setup error instead of
// serving.
const faultVariable = "AGENT_FAULT"

func powerOff() {
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(os.Stderr, "agent: power off:", err)
	}
}

// serve answers requests of the host. It always returns an error.
func serve() error {
	config, err := readConfig()
	if err != nil {
		return err
	}
	hello := wire.Hello{Version: wire.Version, Token: config.Token, Fault: os.Getenv(faultVariable)}
	newServer(config.Host, hello).run()
	return errors.New("all connections to the host ended")
}
