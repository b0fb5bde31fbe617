// Command virtualize assigns an NVMe controller's flexible resources to virtual
// functions and brings them online with the Virtualization Management command
// (NVM Express Base Specification 1.4, section 5.22), for which Linux has no
// interface in sysfs.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// action and resource are fields of dword 10.
type (
	action   uint32
	resource uint32
)

const (
	freePrimary action = 1 // takes effect at the next reset of the primary controller
	assign      action = 8
	online      action = 9

	queues     resource = 0
	interrupts resource = 1
)

func main() {
	free := flag.Bool("free", false, "free all flexible resources of the primary controller; reset it afterwards")
	controller := flag.Uint("controller", 0, "secondary controller to assign resources to and bring online")
	queuePairs := flag.Uint("queues", 2, "number of queue pairs, including the admin queue")
	vectors := flag.Uint("interrupts", 1, "number of interrupt vectors")
	flag.Parse()
	if err := run(flag.Args(), *free, uint16(*controller), uint32(*queuePairs), uint32(*vectors)); err != nil {
		fmt.Fprintln(os.Stderr, "virtualize:", err)
		os.Exit(1)
	}
}

func run(args []string, free bool, controller uint16, queuePairs, vectors uint32) error {
	if len(args) != 1 || free == (controller != 0) {
		return errors.New("usage: virtualize (-free | -controller N) DEVICE")
	}
	device, err := os.OpenFile(args[0], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	if free {
		return errors.Join(manage(device, 0, freePrimary, interrupts, 0), manage(device, 0, freePrimary, queues, 0))
	}
	for _, step := range []func() error{
		func() error { return manage(device, controller, assign, interrupts, vectors) },
		func() error { return manage(device, controller, assign, queues, queuePairs) },
		func() error { return manage(device, controller, online, 0, 0) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// adminCommand is struct nvme_passthru_cmd of linux/nvme_ioctl.h.
type adminCommand struct {
	opcode, flags                           uint8
	_                                       uint16
	namespace, dword2, dword3               uint32
	metadata, address                       uint64
	metadataLength, dataLength              uint32
	dword10, dword11, dword12, dword13      uint32
	dword14, dword15, timeoutMillis, result uint32
}

const (
	adminRequest             = 0xc0484e41 // NVME_IOCTL_ADMIN_CMD: _IOWR('N', 0x41, struct nvme_admin_cmd)
	virtualizationManagement = 0x1c
)

func manage(device *os.File, controller uint16, a action, r resource, count uint32) error {
	command := adminCommand{opcode: virtualizationManagement, dword10: uint32(controller)<<16 | uint32(r)<<8 | uint32(a), dword11: count}
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), adminRequest, uintptr(unsafe.Pointer(&command)))
	runtime.KeepAlive(device)
	switch {
	case errno != 0:
		return fmt.Errorf("controller %d: action %d, resource %d, count %d: %w", controller, a, r, count, errno)
	case status != 0:
		return fmt.Errorf("controller %d: action %d, resource %d, count %d: NVMe status %#x", controller, a, r, count, status)
	}
	return nil
}
