// Command writer writes numbered blocks to a disk, flushes each and prints its
// number. With -check it verifies the blocks.
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// blockSize is the size of every request in bytes.
const blockSize = 4096

func main() {
	check := flag.Int("check", 0, "verify that many blocks instead of writing")
	flag.Parse()
	if err := run(flag.Args(), *check); err != nil {
		fmt.Fprintln(os.Stderr, "writer:", err)
		os.Exit(1)
	}
}

func run(args []string, check int) error {
	if len(args) != 1 {
		return errors.New("usage: writer [-check N] DISK")
	}
	// O_DIRECT bypasses the guest's page cache, so reads come from the disk.
	disk, err := os.OpenFile(args[0], os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer disk.Close()
	if check > 0 {
		return look(disk, check)
	}
	return write(disk)
}

// write writes until an error, at the latest at the end of the disk. It prints
// a block's number once its flush was acknowledged.
func write(disk *os.File) error {
	buffer := aligned()
	for i := 0; ; i++ {
		copy(buffer, block(i))
		if _, err := disk.WriteAt(buffer, int64(i)*blockSize); err != nil {
			return fmt.Errorf("block %d: %w", i, err)
		}
		if err := unix.Fdatasync(int(disk.Fd())); err != nil {
			return fmt.Errorf("flush block %d: %w", i, err)
		}
		fmt.Println(i)
	}
}

func look(disk *os.File, n int) error {
	buffer := aligned()
	for i := range n {
		if _, err := disk.ReadAt(buffer, int64(i)*blockSize); err != nil {
			return fmt.Errorf("block %d: %w", i, err)
		}
		if !bytes.Equal(buffer, block(i)) {
			return fmt.Errorf("block %d has unexpected contents, starting with % x", i, buffer[:16])
		}
	}
	fmt.Println(n, "blocks verified")
	return nil
}

// block returns the content of block i: its number and pseudorandom bytes
// seeded with it.
func block(i int) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, blockSize), uint64(i))
	for r := rand.New(rand.NewPCG(uint64(i), 1)); len(b) < blockSize; {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return b
}

// aligned returns a buffer aligned for O_DIRECT.
func aligned() []byte {
	b := make([]byte, 2*blockSize)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (blockSize - 1)
	return b[skip : skip+blockSize]
}
