package nvme

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// adminCommand is struct nvme_passthru_cmd of linux/nvme_ioctl.h.
type adminCommand struct {
	opcode, flags        uint8
	_                    uint16
	nsid                 uint32
	_, _                 uint32
	_                    uint64
	address              uint64
	_, length            uint32
	command10, command11 uint32
	_                    [4]uint32
	timeout, result      uint32
}

const (
	ioctlAdmin       = 0xc0484e41 // NVME_IOCTL_ADMIN_CMD
	opcodeIdentify   = 0x06
	identifySize     = 4096
	identifyBoundMS  = 10_000
	maxBlockSizeBits = 16
)

// TargetSize asks the target for the size of a namespace, in bytes. The kernel
// learns of a change later (Identify Namespace, NVM Command Set Specification,
// section 4.1.5.1). It blocks for up to 10 seconds.
func (k *Kernel) TargetSize(c Controller, nsid uint32) (int64, error) {
	f, err := os.Open(filepath.Join(k.Dev, c.Name))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	data := make([]byte, identifySize)
	command := adminCommand{opcode: opcodeIdentify, nsid: nsid, length: identifySize, timeout: identifyBoundMS}
	command.address = uint64(uintptr(unsafe.Pointer(&data[0])))
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), ioctlAdmin, uintptr(unsafe.Pointer(&command)))
	runtime.KeepAlive(data)
	if errno != 0 {
		return 0, fmt.Errorf("identify namespace %d of %s: %w", nsid, c.Name, errno)
	}
	if status != 0 {
		return 0, fmt.Errorf("identify namespace %d of %s: NVMe status %#x", nsid, c.Name, status)
	}
	return parseSize(data)
}

// parseSize reads NSZE, and LBADS of the format that FLBAS names.
func parseSize(data []byte) (int64, error) {
	const nsze, flbas, formats, formatSize = 0, 26, 128, 4
	format := int(data[flbas]&0xf | data[flbas]>>1&0x30)
	shift := data[formats+formatSize*format+2]
	blocks := binary.LittleEndian.Uint64(data[nsze:])
	if shift > maxBlockSizeBits || blocks>>(62-shift) != 0 {
		return 0, fmt.Errorf("the namespace has %d blocks of 2^%d bytes, which is not possible", blocks, shift)
	}
	return int64(blocks << shift), nil
}
