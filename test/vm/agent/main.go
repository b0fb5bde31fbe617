// Command agent is the first process of a test guest. Process 1 prepares the
// machine, starts itself again to serve the host, and from then on only reaps
// orphans; the second process can so wait for its own children undisturbed.
package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/vm/wire"
)

// environment is what every process of the guest starts with.
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
		fmt.Fprintln(os.Stderr, "agent: the guest could not set itself up:", err)
	}
	fmt.Fprintln(os.Stderr, "agent: ended:", supervise(err))
	powerOff()
}

// supervise runs the serving process and reaps whatever ends until it is that
// one. fault is what the host is to hear instead of being served.
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

// faultVariable tells the serving process that there is nothing to serve.
const faultVariable = "AGENT_FAULT"

func powerOff() {
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(os.Stderr, "agent: power off:", err)
	}
}

// serve answers the host. It returns only what is in the way of that.
func serve() error {
	config, err := readConfig()
	if err != nil {
		return err
	}
	hello := wire.Hello{Version: wire.Version, Token: config.Token, Fault: os.Getenv(faultVariable)}
	newServer(config.Host, hello).run()
	return errors.New("no connection to the host is left")
}
