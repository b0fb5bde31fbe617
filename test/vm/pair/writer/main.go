// Command writer writes numbered blocks to a disk, each when the one before is
// durable, and says which are; or it looks whether they are there.
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

// blockSize is the unit of every request, in bytes.
const blockSize = 4096

func main() {
	check := flag.Int("check", 0, "look for that many blocks instead of writing")
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
	// Past the guest's page cache: what is read comes from the disk.
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

// write goes on until an error, which is the disk's end at the latest. It
// prints the number of a block once the disk has acknowledged its flush.
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
			return fmt.Errorf("block %d holds other bytes than were written: it begins with % x", i, buffer[:16])
		}
	}
	fmt.Println(n, "blocks hold what was written")
	return nil
}

// block is what block i holds: its number, then bytes that follow from it.
func block(i int) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, blockSize), uint64(i))
	for r := rand.New(rand.NewPCG(uint64(i), 1)); len(b) < blockSize; {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return b
}

// aligned is a buffer as O_DIRECT wants it.
func aligned() []byte {
	b := make([]byte, 2*blockSize)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (blockSize - 1)
	return b[skip : skip+blockSize]
}
