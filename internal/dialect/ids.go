package dialect

import "strconv"

// AppendIDs appends token ids as the inside of a JSON array.
func AppendIDs(dst []byte, ids []uint32) []byte {
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	return dst
}
