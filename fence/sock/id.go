package sock

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// identity is a parsed session ID. inode is as listed; zero: not accepted yet.
type identity struct {
	boot   string
	cookie uint64
	inode  uint32
}

func (i identity) String() string {
	return fmt.Sprintf("tcp/%s/%x/%d", i.boot, i.cookie, i.inode)
}

func parseIdentity(text string) (identity, error) {
	parts := strings.Split(text, "/")
	if len(parts) == 4 && parts[0] == "tcp" && parts[1] != "" {
		cookie, errCookie := strconv.ParseUint(parts[2], 16, 64)
		inode, errInode := strconv.ParseUint(parts[3], 10, 32)
		if errCookie == nil && errInode == nil {
			return identity{parts[1], cookie, uint32(inode)}, nil
		}
	}
	return identity{}, errs.Errorf(errs.Invalid, "invalid session ID %q: want tcp/BOOT/COOKIE/INODE as listed by Sessions", text)
}

// Cookies and inodes are unique within one boot.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", errs.Errorf(errs.Internal, "read the boot ID: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
