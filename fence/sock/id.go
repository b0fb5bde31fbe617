package sock

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// identity is what a session's ID says. The inode is that of the socket when it
// was listed, zero as long as nobody had accepted the connection.
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
	return identity{}, errs.Errorf(errs.Invalid, "%q names no session: it is tcp/BOOT/COOKIE/INODE, as Sessions lists it", text)
}

// bootID is that of this boot of the machine; cookies and inodes begin anew at
// the next.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", errs.Errorf(errs.Internal, "which boot of the machine this is: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
