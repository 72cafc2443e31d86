package jinja

// Code points whose upper or title case is more than one code point, from
// Unicode's SpecialCasing, which Go's unicode package leaves out; and those
// with a numeric value that are not of category N.

// specialCase gives the upper and title case of r where they are special.
func specialCase(r rune) (upper, title string, ok bool) {
	switch r {
	case 0x00df:
		return "SS", "Ss", true
	case 0x0149:
		return "\u02bcN", "\u02bcN", true
	case 0x01f0:
		return "J\u030c", "J\u030c", true
	case 0x0390:
		return "\u0399\u0308\u0301", "\u0399\u0308\u0301", true
	case 0x03b0:
		return "\u03a5\u0308\u0301", "\u03a5\u0308\u0301", true
	case 0x0587:
		return "\u0535\u0552", "\u0535\u0582", true
	case 0x1e96:
		return "H\u0331", "H\u0331", true
	case 0x1e97:
		return "T\u0308", "T\u0308", true
	case 0x1e98:
		return "W\u030a", "W\u030a", true
	case 0x1e99:
		return "Y\u030a", "Y\u030a", true
	case 0x1e9a:
		return "A\u02be", "A\u02be", true
	case 0x1f50:
		return "\u03a5\u0313", "\u03a5\u0313", true
	case 0x1f52:
		return "\u03a5\u0313\u0300", "\u03a5\u0313\u0300", true
	case 0x1f54:
		return "\u03a5\u0313\u0301", "\u03a5\u0313\u0301", true
	case 0x1f56:
		return "\u03a5\u0313\u0342", "\u03a5\u0313\u0342", true
	case 0x1f80:
		return "\u1f08\u0399", "\u1f88", true
	case 0x1f81:
		return "\u1f09\u0399", "\u1f89", true
	case 0x1f82:
		return "\u1f0a\u0399", "\u1f8a", true
	case 0x1f83:
		return "\u1f0b\u0399", "\u1f8b", true
	case 0x1f84:
		return "\u1f0c\u0399", "\u1f8c", true
	case 0x1f85:
		return "\u1f0d\u0399", "\u1f8d", true
	case 0x1f86:
		return "\u1f0e\u0399", "\u1f8e", true
	case 0x1f87:
		return "\u1f0f\u0399", "\u1f8f", true
	case 0x1f88:
		return "\u1f08\u0399", "\u1f88", true
	case 0x1f89:
		return "\u1f09\u0399", "\u1f89", true
	case 0x1f8a:
		return "\u1f0a\u0399", "\u1f8a", true
	case 0x1f8b:
		return "\u1f0b\u0399", "\u1f8b", true
	case 0x1f8c:
		return "\u1f0c\u0399", "\u1f8c", true
	case 0x1f8d:
		return "\u1f0d\u0399", "\u1f8d", true
	case 0x1f8e:
		return "\u1f0e\u0399", "\u1f8e", true
	case 0x1f8f:
		return "\u1f0f\u0399", "\u1f8f", true
	case 0x1f90:
		return "\u1f28\u0399", "\u1f98", true
	case 0x1f91:
		return "\u1f29\u0399", "\u1f99", true
	case 0x1f92:
		return "\u1f2a\u0399", "\u1f9a", true
	case 0x1f93:
		return "\u1f2b\u0399", "\u1f9b", true
	case 0x1f94:
		return "\u1f2c\u0399", "\u1f9c", true
	case 0x1f95:
		return "\u1f2d\u0399", "\u1f9d", true
	case 0x1f96:
		return "\u1f2e\u0399", "\u1f9e", true
	case 0x1f97:
		return "\u1f2f\u0399", "\u1f9f", true
	case 0x1f98:
		return "\u1f28\u0399", "\u1f98", true
	case 0x1f99:
		return "\u1f29\u0399", "\u1f99", true
	case 0x1f9a:
		return "\u1f2a\u0399", "\u1f9a", true
	case 0x1f9b:
		return "\u1f2b\u0399", "\u1f9b", true
	case 0x1f9c:
		return "\u1f2c\u0399", "\u1f9c", true
	case 0x1f9d:
		return "\u1f2d\u0399", "\u1f9d", true
	case 0x1f9e:
		return "\u1f2e\u0399", "\u1f9e", true
	case 0x1f9f:
		return "\u1f2f\u0399", "\u1f9f", true
	case 0x1fa0:
		return "\u1f68\u0399", "\u1fa8", true
	case 0x1fa1:
		return "\u1f69\u0399", "\u1fa9", true
	case 0x1fa2:
		return "\u1f6a\u0399", "\u1faa", true
	case 0x1fa3:
		return "\u1f6b\u0399", "\u1fab", true
	case 0x1fa4:
		return "\u1f6c\u0399", "\u1fac", true
	case 0x1fa5:
		return "\u1f6d\u0399", "\u1fad", true
	case 0x1fa6:
		return "\u1f6e\u0399", "\u1fae", true
	case 0x1fa7:
		return "\u1f6f\u0399", "\u1faf", true
	case 0x1fa8:
		return "\u1f68\u0399", "\u1fa8", true
	case 0x1fa9:
		return "\u1f69\u0399", "\u1fa9", true
	case 0x1faa:
		return "\u1f6a\u0399", "\u1faa", true
	case 0x1fab:
		return "\u1f6b\u0399", "\u1fab", true
	case 0x1fac:
		return "\u1f6c\u0399", "\u1fac", true
	case 0x1fad:
		return "\u1f6d\u0399", "\u1fad", true
	case 0x1fae:
		return "\u1f6e\u0399", "\u1fae", true
	case 0x1faf:
		return "\u1f6f\u0399", "\u1faf", true
	case 0x1fb2:
		return "\u1fba\u0399", "\u1fba\u0345", true
	case 0x1fb3:
		return "\u0391\u0399", "\u1fbc", true
	case 0x1fb4:
		return "\u0386\u0399", "\u0386\u0345", true
	case 0x1fb6:
		return "\u0391\u0342", "\u0391\u0342", true
	case 0x1fb7:
		return "\u0391\u0342\u0399", "\u0391\u0342\u0345", true
	case 0x1fbc:
		return "\u0391\u0399", "\u1fbc", true
	case 0x1fc2:
		return "\u1fca\u0399", "\u1fca\u0345", true
	case 0x1fc3:
		return "\u0397\u0399", "\u1fcc", true
	case 0x1fc4:
		return "\u0389\u0399", "\u0389\u0345", true
	case 0x1fc6:
		return "\u0397\u0342", "\u0397\u0342", true
	case 0x1fc7:
		return "\u0397\u0342\u0399", "\u0397\u0342\u0345", true
	case 0x1fcc:
		return "\u0397\u0399", "\u1fcc", true
	case 0x1fd2:
		return "\u0399\u0308\u0300", "\u0399\u0308\u0300", true
	case 0x1fd3:
		return "\u0399\u0308\u0301", "\u0399\u0308\u0301", true
	case 0x1fd6:
		return "\u0399\u0342", "\u0399\u0342", true
	case 0x1fd7:
		return "\u0399\u0308\u0342", "\u0399\u0308\u0342", true
	case 0x1fe2:
		return "\u03a5\u0308\u0300", "\u03a5\u0308\u0300", true
	case 0x1fe3:
		return "\u03a5\u0308\u0301", "\u03a5\u0308\u0301", true
	case 0x1fe4:
		return "\u03a1\u0313", "\u03a1\u0313", true
	case 0x1fe6:
		return "\u03a5\u0342", "\u03a5\u0342", true
	case 0x1fe7:
		return "\u03a5\u0308\u0342", "\u03a5\u0308\u0342", true
	case 0x1ff2:
		return "\u1ffa\u0399", "\u1ffa\u0345", true
	case 0x1ff3:
		return "\u03a9\u0399", "\u1ffc", true
	case 0x1ff4:
		return "\u038f\u0399", "\u038f\u0345", true
	case 0x1ff6:
		return "\u03a9\u0342", "\u03a9\u0342", true
	case 0x1ff7:
		return "\u03a9\u0342\u0399", "\u03a9\u0342\u0345", true
	case 0x1ffc:
		return "\u03a9\u0399", "\u1ffc", true
	case 0xfb00:
		return "FF", "Ff", true
	case 0xfb01:
		return "FI", "Fi", true
	case 0xfb02:
		return "FL", "Fl", true
	case 0xfb03:
		return "FFI", "Ffi", true
	case 0xfb04:
		return "FFL", "Ffl", true
	case 0xfb05:
		return "ST", "St", true
	case 0xfb06:
		return "ST", "St", true
	case 0xfb13:
		return "\u0544\u0546", "\u0544\u0576", true
	case 0xfb14:
		return "\u0544\u0535", "\u0544\u0565", true
	case 0xfb15:
		return "\u0544\u053b", "\u0544\u056b", true
	case 0xfb16:
		return "\u054e\u0546", "\u054e\u0576", true
	case 0xfb17:
		return "\u0544\u053d", "\u0544\u056d", true
	}
	return "", "", false
}

// isDigitRune reports Numeric_Type Digit without Decimal (superscripts and the like).
func isDigitRune(r rune) bool {
	switch {
	case r >= 0xb2 && r <= 0xb3, r == 0xb9, r >= 0x1369 && r <= 0x1371, r == 0x19da,
		r == 0x2070, r >= 0x2074 && r <= 0x2079, r >= 0x2080 && r <= 0x2089, r >= 0x2460 && r <= 0x2468,
		r >= 0x2474 && r <= 0x247c, r >= 0x2488 && r <= 0x2490, r == 0x24ea, r >= 0x24f5 && r <= 0x24fd,
		r == 0x24ff, r >= 0x2776 && r <= 0x277e, r >= 0x2780 && r <= 0x2788, r >= 0x278a && r <= 0x2792,
		r >= 0x10a40 && r <= 0x10a43, r >= 0x10e60 && r <= 0x10e68, r >= 0x11052 && r <= 0x1105a, r >= 0x1f100 && r <= 0x1f10a:
		return true
	}
	return false
}

// isNumericLetter reports letters with a numeric value, such as the CJK numerals.
func isNumericLetter(r rune) bool {
	switch {
	case r == 0x3405, r == 0x3483, r == 0x382a, r == 0x3b4d,
		r == 0x4e00, r == 0x4e03, r == 0x4e07, r == 0x4e09,
		r == 0x4e5d, r == 0x4e8c, r == 0x4e94, r == 0x4e96,
		r >= 0x4ebf && r <= 0x4ec0, r == 0x4edf, r == 0x4ee8, r == 0x4f0d,
		r == 0x4f70, r == 0x5104, r == 0x5146, r == 0x5169,
		r == 0x516b, r == 0x516d, r == 0x5341, r >= 0x5343 && r <= 0x5345,
		r == 0x534c, r >= 0x53c1 && r <= 0x53c4, r == 0x56db, r == 0x58f1,
		r == 0x58f9, r == 0x5e7a, r >= 0x5efe && r <= 0x5eff, r >= 0x5f0c && r <= 0x5f0e,
		r == 0x5f10, r == 0x62fe, r == 0x634c, r == 0x67d2,
		r == 0x6f06, r == 0x7396, r == 0x767e, r == 0x8086,
		r == 0x842c, r == 0x8cae, r == 0x8cb3, r == 0x8d30,
		r == 0x9621, r == 0x9646, r == 0x964c, r == 0x9678,
		r == 0x96f6, r == 0xf96b, r == 0xf973, r == 0xf978,
		r == 0xf9b2, r == 0xf9d1, r == 0xf9d3, r == 0xf9fd,
		r == 0x20001, r == 0x20064, r == 0x200e2, r == 0x20121,
		r == 0x2092a, r == 0x20983, r == 0x2098c, r == 0x2099c,
		r == 0x20aea, r == 0x20afd, r == 0x20b19, r == 0x22390,
		r == 0x22998, r == 0x23b1b, r == 0x2626d, r == 0x2f890:
		return true
	}
	return false
}
