// Command storm writes stamped blocks to a disk with several workers, each one
// block at a time, and prints the worker and number of each acknowledged block.
// It exits at the first failed write.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The layout, which the test knows too: each worker cycles through its own
// area.
const (
	blockSize = 4096
	areaSize  = 1 << 20
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "storm:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: storm DISK WORKERS FIRST")
	}
	workers, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	first, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return err
	}
	disk, err := os.OpenFile(args[0], os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer disk.Close()
	failed := make(chan error)
	for worker := range workers {
		go func() { failed <- write(disk, worker, first) }()
	}
	return <-failed
}

func write(disk *os.File, worker int, first uint64) error {
	buffer := aligned()
	for n := first; ; n++ {
		binary.LittleEndian.PutUint64(buffer, uint64(worker))
		binary.LittleEndian.PutUint64(buffer[8:], n)
		binary.LittleEndian.PutUint64(buffer[blockSize-8:], n)
		at := int64(worker)*areaSize + int64(n*blockSize%areaSize)
		if _, err := disk.WriteAt(buffer, at); err != nil {
			return fmt.Errorf("worker %d, block %d: %w", worker, n, err)
		}
		fmt.Printf("%d %d\n", worker, n)
	}
}

// aligned returns a buffer aligned for O_DIRECT.
func aligned() []byte {
	b := make([]byte, 2*blockSize)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (blockSize - 1)
	return b[skip : skip+blockSize]
}
